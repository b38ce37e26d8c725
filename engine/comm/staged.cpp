// The staged form of every collective: for buffers that peers cannot access, and for exchanges of byte strings.
#include <algorithm>
#include <vector>

#include "engine/comm/reduce.hpp"
#include "engine/comm/staging.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// One member's side of a staged collective. A piece is a range of elements, taken from every shard of the member's
// input.
struct Staging : StagingShape {
  explicit Staging(IssuedCollective& which)
      : StagingShape(which.slot().entries(), which.group->size),
        issued(which),
        size(which.group->size),
        entries(which.slot().entries()) {
    allocate(*which.rank->world, entries[issued.me]);
  }

  std::byte* area(int member, std::int64_t number) const {
    return issued.rank->world->at(offset_of(entries[member], number));
  }
  // The address of shard `index` in a member's staged piece.
  std::byte* staged_shard(int member, std::int64_t number, int index) const {
    return area(member, number) + index * piece * element;
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(bounded_product(elements, element));
  }

  void copy_in(std::int64_t number, std::int64_t begin, std::int64_t n) {
    if (!has_input(issued.me)) return;
    const std::int64_t mine = entries[issued.me].fingerprint.count;
    n = std::min(n, mine - begin);
    if (n <= 0) return;
    const std::byte* input =
        is_exchange ? reinterpret_cast<const std::byte*>(issued.exchange_input->data()) : issued.input;
    for (int index = 0; index < shards; ++index) {
      moved_in += static_cast<std::int64_t>(
          copy(staged_shard(issued.me, number, index), input + bytes(index * count + begin), bytes(n), false));
    }
  }

  void copy_counted(std::byte* to, const std::byte* from, std::int64_t n) {
    if (n > 0) moved_out += static_cast<std::int64_t>(copy(to, from, bytes(n), false));
  }

  void copy_out(std::int64_t number, std::int64_t begin, std::int64_t n) {
    const int me = issued.me;
    std::byte* output = issued.output;
    switch (kind) {
      case Operation::all_reduce:
      case Operation::reduce_scatter: {
        std::vector<const std::byte*> inputs;
        inputs.reserve(static_cast<std::size_t>(size));
        for (int member = 0; member < size; ++member)
          inputs.push_back(staged_shard(member, number, kind == Operation::reduce_scatter ? me : 0));
        output += bytes(begin);
        moved_out += static_cast<std::int64_t>(
            reduce({dtype, op, inputs, {&output, 1}, op == ReduceOp::mean ? size : 1, false}, 0, n));
        return;
      }
      case Operation::all_gather:
        for (int from = 0; from < size; ++from) {
          if (!is_exchange) {
            copy_counted(output + bytes(from * count + begin), staged_shard(from, number, 0), n);
          } else {
            const std::int64_t here = std::min(n, entries[from].fingerprint.count - begin);
            if (here > 0)
              (*issued.exchange_output)[static_cast<std::size_t>(from)].append(
                  reinterpret_cast<const char*>(staged_shard(from, number, 0)), bytes(here));
          }
        }
        return;
      case Operation::all_to_all:
        for (int from = 0; from < size; ++from)
          copy_counted(output + bytes(from * count + begin), staged_shard(from, number, me), n);
        return;
      case Operation::gather:
        if (me != root) return;
        for (int from = 0; from < size; ++from)
          copy_counted(output + bytes(from * count + begin), staged_shard(from, number, 0), n);
        return;
      case Operation::scatter:
        copy_counted(output + bytes(begin), staged_shard(root, number, me), n);
        return;
      case Operation::broadcast:
      case Operation::send:
      case Operation::receive:
        if (me != root) copy_counted(output + bytes(begin), staged_shard(root, number, 0), n);
        return;
      case Operation::barrier:
        return;
    }
  }

  IssuedCollective& issued;
  int size;
  MemberEntry* entries;
  std::int64_t moved_in = 0, moved_out = 0;
};

class Staged : public Transport {
 public:
  TransportTraits traits() const override { return {.private_buffers = true, .between_hosts = true}; }
  void move(IssuedCollective& issued) const override {
    Staging staging(issued);
    std::int64_t number = 0;
    for (std::int64_t begin = 0; begin < staging.count; begin += staging.piece, ++number) {
      const std::int64_t n = std::min(staging.piece, staging.count - begin);
      staging.copy_in(number, begin, n);
      meet_members(issued, number);  // all have copied in this piece
      staging.copy_out(number, begin, n);
    }
    staging.entries[issued.me].moved_bytes.fetch_add(std::max(staging.moved_in, staging.moved_out));
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
