// Exchanges of byte strings, of any lengths.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "engine/comm/staging.hpp"
#include "engine/comm/transport.hpp"

namespace lockstep::comm {

namespace {

class Staged : public Transport {
 public:
  TransportTraits traits() const override { return {.exchanges = true, .between_hosts = true}; }
  void move(IssuedCollective& issued) const override {
    WorldControl& world = *issued.rank->world;
    MemberEntry* const entries = issued.slot().entries();
    const int size = issued.group->size;
    std::int64_t longest = 0;
    for (int member = 0; member < size; ++member) longest = std::max(longest, entries[member].fingerprint.count);
    allocate_staging(world, entries[issued.me]);
    std::string_view rest = *issued.exchange_input;
    for (std::int64_t number = 0; bounded_product(number, longest_piece) < longest; ++number) {
      const std::string_view piece = rest.substr(0, piece_bytes(entries[issued.me], number));
      std::memcpy(staged_piece(world, entries[issued.me], number), piece.data(), piece.size());
      rest.remove_prefix(piece.size());
      meet_members(issued, number);  // all have copied in this piece
      for (int from = 0; from < size; ++from)
        (*issued.exchange_output)[static_cast<std::size_t>(from)].append(
            reinterpret_cast<const char*>(staged_piece(world, entries[from], number)),
            piece_bytes(entries[from], number));
    }
  }
};

}  // namespace

void meet_members(IssuedCollective& issued, std::int64_t number) {
  Slot& slot = issued.slot();
  const auto target = static_cast<std::uint64_t>(number + 1) * static_cast<std::uint64_t>(issued.group->size);
  if (slot.barrier_arrivals.fetch_add(1) + 1 == target) notify(slot.changes);
  issued.rank->plane->staged_piece(*issued.group, issued.me, issued.sequence, static_cast<std::uint64_t>(number));
  wait_until(issued, WaitReason::staging_barrier, target);
}

const Transport& staged_transport() {
  static const Staged transport;
  return transport;
}

}  // namespace lockstep::comm
