#include "engine/comm/transport.hpp"

#include <algorithm>
#include <vector>

#include "engine/comm/reduce.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t large_bytes = std::int64_t{1} << 20;
constexpr std::int64_t large_chunk_bytes = std::int64_t{256} << 10;  // per buffer, in a group of two ranks
constexpr std::int64_t min_chunk_bytes = std::int64_t{16} << 10;
constexpr std::int64_t max_small_bytes = std::int64_t{16} << 10;  // computed by the last arriver alone

Operation kind_of(const Fingerprint& fingerprint) { return static_cast<Operation>(fingerprint.kind); }

// The members' buffers as arrays. Outputs are shifted by `output_offset` bytes; null if a member has none.
struct Buffers {
  Buffers(const MemberEntry* entries, int size, std::size_t output_offset = 0) {
    const auto count = static_cast<std::size_t>(size);
    if (count > few) {
      many_inputs.resize(count);
      many_outputs.resize(count);
      inputs = many_inputs.data();
      outputs = many_outputs.data();
    }
    for (std::size_t i = 0; i < count; ++i) {
      inputs[i] = entries[i].input;
      outputs[i] = entries[i].output == nullptr ? nullptr : entries[i].output + output_offset;
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  static constexpr std::size_t few = 16;
  const std::byte* few_inputs[few];
  std::byte* few_outputs[few];
  std::vector<const std::byte*> many_inputs;
  std::vector<std::byte*> many_outputs;
  const std::byte** inputs = few_inputs;
  std::byte** outputs = few_outputs;
};

// Computes ranges of a collective's elements. A member's moved_bytes grows by the bytes of its input or output that
// copy() and reduce() report as stored.
class Mover {
 public:
  Mover(MemberEntry* entries, int size, bool nontemporal)
      : entries_(entries),
        size_(size),
        num_members_(static_cast<std::size_t>(size)),
        kind_(kind_of(entries[0].fingerprint)),
        dtype_(static_cast<DType>(entries[0].fingerprint.dtype)),
        op_(static_cast<ReduceOp>(entries[0].fingerprint.op)),
        root_(entries[0].fingerprint.root),
        shard_(entries[0].fingerprint.count),
        element_(size_of(dtype_)),
        nontemporal_(nontemporal) {}

  // Elements [begin, end) of the collective's range.
  void run(std::int64_t begin, std::int64_t end) {
    switch (kind_) {
      case Operation::all_reduce:
        return all_reduce(begin, end);
      case Operation::broadcast:
      case Operation::send:
      case Operation::receive:
        return broadcast(begin, end);
      case Operation::barrier:
        return;
      default:
        return run_shards(begin, end);
    }
  }

 private:
  // A range of elements within one shard.
  struct Piece {
    std::int64_t index;          // of the shard, in the collective's range
    int member;                  // index % size
    std::int64_t begin, within;  // the first element, in the collective's range and in the shard
    std::int64_t n;
  };

  std::size_t bytes(std::int64_t elements) const { return bounded_bytes(elements, element_); }
  int divisor() const { return op_ == ReduceOp::mean ? size_ : 1; }

  void account(int member, std::size_t stored) {
    entries_[member].moved_bytes.fetch_add(static_cast<std::int64_t>(stored), std::memory_order_relaxed);
  }
  void account_all(std::size_t stored) {
    for (int member = 0; member < size_; ++member) account(member, stored);
  }
  void account_root_and(int member, std::size_t stored) {
    account(root_, stored);
    if (member != root_) account(member, stored);
  }

  void all_reduce(std::int64_t begin, std::int64_t end) {
    const Buffers buffers(entries_, size_);
    account_all(reduce({dtype_, op_, {buffers.inputs, num_members_}, {buffers.outputs, num_members_}, divisor(), false},
                       begin, end - begin));
  }

  // Through the caches, because the members usually have just used the destination.
  void broadcast(std::int64_t begin, std::int64_t end) {
    const Buffers buffers(entries_, size_, bytes(begin));
    account_all(
        copy_to_all({buffers.outputs, num_members_}, entries_[root_].input + bytes(begin), bytes(end - begin), false));
  }

  // The operations whose range is a sequence of shards.
  void run_shards(std::int64_t begin, std::int64_t end) {
    const Buffers buffers(entries_, kind_ == Operation::reduce_scatter ? size_ : 0);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t index = at / shard_;
      const std::int64_t stop = std::min(end, (index + 1) * shard_);
      run_piece(buffers, {index, static_cast<int>(index % size_), at, at - index * shard_, stop - at});
      at = stop;
    }
  }

  void run_piece(const Buffers& buffers, const Piece& piece) {
    const auto copy_from = [&](std::byte* to, const std::byte* from) {
      return copy(to, from, bytes(piece.n), nontemporal_);
    };
    MemberEntry& member = entries_[piece.member];
    switch (kind_) {
      case Operation::all_gather: {
        const Buffers destinations(entries_, size_, bytes(piece.begin));
        return account_all(copy_to_all({destinations.outputs, num_members_}, member.input + bytes(piece.within),
                                       bytes(piece.n), nontemporal_));
      }
      case Operation::reduce_scatter: {
        // The output holds one shard. It is shifted back, so that inputs and output count elements from the same start.
        std::byte* output = member.output - bytes(piece.index * shard_);
        return account_all(reduce({dtype_, op_, {buffers.inputs, num_members_}, {&output, 1}, divisor(), nontemporal_},
                                  piece.begin, piece.n));
      }
      case Operation::all_to_all: {
        const auto to = static_cast<int>(piece.index / size_);
        return account(to, copy_from(entries_[to].output + bytes(piece.member * shard_ + piece.within),
                                     member.input + bytes(to * shard_ + piece.within)));
      }
      case Operation::gather:
        return account_root_and(
            piece.member, copy_from(entries_[root_].output + bytes(piece.begin), member.input + bytes(piece.within)));
      case Operation::scatter:
        return account_root_and(
            piece.member, copy_from(member.output + bytes(piece.within), entries_[root_].input + bytes(piece.begin)));
      default:
        return;
    }
  }

  MemberEntry* entries_;
  int size_;
  std::size_t num_members_;
  Operation kind_;
  DType dtype_;
  ReduceOp op_;
  int root_;
  std::int64_t shard_;   // elements
  std::size_t element_;  // bytes
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
  return chunking.num_chunks <= 1 &&
         bounded_product(chunking.total, static_cast<std::int64_t>(size_of(static_cast<DType>(fingerprint.dtype)))) <=
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
  if (chunking.total > 0) Mover(slot.entries(), size, chunking.nontemporal).run(0, chunking.total);
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

bool has_unreachable_buffer(const IssuedCollective& issued) {
  if (issued.rank->world->processes == 0 || issued.rank->host == nullptr) return false;
  const device::HostWorld& host = *issued.rank->host;
  const int rank = issued.rank->rank;
  const auto is_reachable = [&](const std::byte* pointer) {
    return pointer == nullptr || host.arena_with(rank, pointer) >= 0;
  };
  return !is_reachable(issued.input) || !is_reachable(issued.output);
}

namespace {

// Claims and computes chunks until none is left. True for the member that finished the last chunk.
bool run_chunks(Slot& slot, int size) {
  const Chunking chunking = chunking_of(slot.entries()[0].fingerprint, size);
  Mover mover(slot.entries(), size, chunking.nontemporal);
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
