#include "engine/comm/transport.hpp"

#include <algorithm>

#include "engine/comm/mover.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/device/capabilities.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t large_bytes = std::int64_t{1} << 20;
constexpr std::int64_t large_chunk_bytes = std::int64_t{256} << 10;  // per buffer, in a group of two ranks
constexpr std::int64_t min_chunk_bytes = std::int64_t{16} << 10;
constexpr std::int64_t max_small_bytes = std::int64_t{16} << 10;  // computed by the last arriver alone

Operation kind_of(const Fingerprint& fingerprint) { return static_cast<Operation>(fingerprint.kind); }

// Memory that all members have at the same addresses.
class SharedBuffers {
 public:
  SharedBuffers(const MemberEntry* entries, bool nontemporal) : entries_(entries), nontemporal_(nontemporal) {}
  const std::byte* input(int member) const { return entries_[member].input; }
  std::byte* output(int member) const { return entries_[member].output; }
  std::size_t copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    return comm::copy(to, from, bytes, nontemporal_);
  }
  std::size_t copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes,
                          bool may_bypass) const {
    return comm::copy_to_all(to, from, bytes, may_bypass && nontemporal_);
  }
  std::size_t reduce(Reduction reduction, std::int64_t begin, std::int64_t count) const {
    reduction.nontemporal = reduction.nontemporal && nontemporal_;
    return comm::reduce(reduction, begin, count);
  }

 private:
  const MemberEntry* entries_;
  bool nontemporal_;
};

std::int64_t num_shards(Operation kind, std::int64_t size) {
  switch (kind) {
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::gather:
    case Operation::scatter:
      return size;
    case Operation::all_to_all:
      return size * size;
    case Operation::barrier:
      return 0;
    default:
      return 1;
  }
}

// Each element of the range belongs to a buffer of every member.
bool touches_all(Operation kind) {
  return kind == Operation::all_reduce || kind == Operation::reduce_scatter || kind == Operation::all_gather ||
         kind == Operation::broadcast;
}

// The last arriver computes it alone.
bool is_small(const Fingerprint& fingerprint, const Chunking& chunking) {
  return bounded_product(chunking.total, static_cast<std::int64_t>(size_of(static_cast<DType>(fingerprint.dtype)))) <=
         max_small_bytes;
}

}  // namespace

Chunking chunking_of(const Fingerprint& fingerprint, int size) {
  Chunking chunking;
  if (fingerprint.kind == exchange_kind) return chunking;
  chunking.total = bounded_product(fingerprint.count, num_shards(kind_of(fingerprint), size));
  if (chunking.total == 0) return chunking;
  const auto element = static_cast<std::int64_t>(size_of(static_cast<DType>(fingerprint.dtype)));
  const std::int64_t bytes = bounded_product(chunking.total, element);
  std::int64_t chunk_bytes = bytes;
  // Chunks access about the same number of bytes in all: the more buffers, the shorter the range of each.
  if (bytes >= large_bytes)
    chunk_bytes = touches_all(kind_of(fingerprint))
                      ? std::max(bounded_product(large_chunk_bytes, 2) / size, min_chunk_bytes)
                      : large_chunk_bytes;
  else if (bytes > max_small_bytes)
    chunk_bytes = (bytes / size + 63) / 64 * 64;
  chunking.chunk = std::max<std::int64_t>(chunk_bytes / element, 1024);
  chunking.num_chunks = (chunking.total + chunking.chunk - 1) / chunking.chunk;
  chunking.nontemporal = bytes >= large_bytes;
  return chunking;
}

bool run_if_small(Slot& slot, int size) {
  const Chunking chunking = chunking_of(slot.entries()[0].fingerprint, size);
  if (!is_small(slot.entries()[0].fingerprint, chunking)) return false;
  const SharedBuffers memory(slot.entries(), chunking.nontemporal);
  Mover(slot.entries(), size, memory).run(0, chunking.total);
  return true;
}

void map_peer_buffers(const IssuedCollective& issued) {
  PeerMappings* mappings = issued.rank->peer_mappings.get();
  if (mappings == nullptr) return;
  const int size = issued.group->size;
  const MemberEntry* entries = issued.slot().entries();
  const Fingerprint& fingerprint = entries[0].fingerprint;
  const Operation kind = kind_of(fingerprint);
  if (is_small(fingerprint, chunking_of(fingerprint, size))) return;
  const bool full_inputs =
      kind == Operation::reduce_scatter || kind == Operation::all_to_all || kind == Operation::scatter;
  const bool full_outputs = kind == Operation::all_gather || kind == Operation::all_to_all || kind == Operation::gather;
  const std::size_t shard = bounded_bytes(fingerprint.count, size_of(static_cast<DType>(fingerprint.dtype)));
  const auto full = bounded_product(shard, static_cast<std::size_t>(size));
  if (full < PeerMappings::min_buffer_bytes) return;
  for (int member = 0; member < size; ++member) {
    if (member == issued.me) continue;
    const int rank = issued.group->members()[member];
    const MemberEntry& entry = entries[member];
    mappings->note_use(rank, entry.input, full_inputs ? full : shard);
    if (entry.output != entry.input) mappings->note_use(rank, entry.output, full_outputs ? full : shard);
  }
}

std::size_t scratch_bytes_of(const WorldControl& world, const GroupControl& group, const Fingerprint& fingerprint,
                             SumOrder order) {
  if (device::capabilities_of(static_cast<device::Kind>(fingerprint.device)).runs_on_host || group.spans_hosts != 0)
    return 0;
  // While some member has not named its device, each may have its own.
  if (share_a_device(world, group.members(), group.size)) return 0;
  return nccl_transport().scratch_bytes(fingerprint, order, group.size);
}

namespace {

// Claims and computes chunks until none is left. True for the member that finished the last chunk.
bool run_chunks(Slot& slot, int size) {
  const Chunking chunking = chunking_of(slot.entries()[0].fingerprint, size);
  const SharedBuffers memory(slot.entries(), chunking.nontemporal);
  Mover mover(slot.entries(), size, memory);
  bool finished = false;
  for (;;) {
    const auto chunk = static_cast<std::int64_t>(slot.next_chunk.fetch_add(1, std::memory_order_relaxed));
    if (chunk >= chunking.num_chunks) return finished;
    mover.run(chunk * chunking.chunk, std::min(chunking.total, (chunk + 1) * chunking.chunk));
    if (slot.done_chunks.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(chunking.num_chunks))
      finished = true;
  }
}

class SharedMemory : public Transport {
 public:
  TransportTraits traits() const override { return {.one_sided = true}; }
  void move(IssuedCollective& issued) const override {
    Slot& slot = issued.slot();
    map_peer_buffers(issued);
    if (run_chunks(slot, issued.group->size)) {
      slot.stage.store(Stage::finished);
      notify(slot.changes);
    }
    wait_until(issued, WaitReason::data);
  }
};

}  // namespace

const Transport& shared_memory_transport() {
  static const SharedMemory transport;
  return transport;
}

}  // namespace lockstep::comm
