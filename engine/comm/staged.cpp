// The staged form of every collective: for buffers that peers cannot access, and for exchanges of byte strings.
#include <algorithm>
#include <vector>

#include "engine/comm/reduce.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Bytes of one half of a member's staging area: one piece is copied in while peers read the other.
constexpr std::int64_t small_half = 2048;
std::int64_t large_half(int size) { return size <= 16 ? 65536 : 16384; }

// One member's side of a staged collective. A piece is a range of elements, taken from every shard of the member's
// input.
struct Staging {
  explicit Staging(IssuedCollective& which) : issued(which), size(which.group->size), entries(which.slot().entries()) {
    const Fingerprint& fingerprint = entries[0].fingerprint;
    is_exchange = fingerprint.kind == exchange_kind;
    kind = is_exchange ? Operation::all_gather : static_cast<Operation>(fingerprint.kind);
    dtype = is_exchange ? DType::boolean : static_cast<DType>(fingerprint.dtype);
    op = static_cast<ReduceOp>(fingerprint.op);
    root = fingerprint.root;
    element = static_cast<std::int64_t>(size_of(dtype));
    for (int member = 0; member < size; ++member) count = std::max(count, entries[member].fingerprint.count);
    shards =
        kind == Operation::reduce_scatter || kind == Operation::all_to_all || kind == Operation::scatter ? size : 1;
    half = count * element * shards <= small_half ? small_half : large_half(size);
    piece = std::max<std::int64_t>(half / (shards * element), 1);
    LOCKSTEP_CHECK(piece * shards * element <= half, shards, " shards do not fit a staging area of ", half, " bytes");
    allocate();
  }

  // The area stays with the member's entry and serves later collectives of the slot. The lowest bit of its offset marks
  // the larger kind.
  void allocate() {
    MemberEntry& mine = entries[issued.me];
    const bool large = half != small_half;
    if (mine.staging != 0 && (!large || (mine.staging & 1) != 0)) return;
    WorldControl& world = *issued.rank->world;
    mine.staging = allocate_control(world, static_cast<std::size_t>(2 * half)) | (large ? 1 : 0);
  }

  std::byte* area(int member, std::int64_t number) const {
    return issued.rank->world->at((entries[member].staging & ~std::uint64_t{1}) +
                                  static_cast<std::uint64_t>((number % 2) * half));
  }
  // The address of shard `index` in a member's staged piece.
  std::byte* staged_shard(int member, std::int64_t number, int index) const {
    return area(member, number) + index * piece * element;
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(bounded_product(elements, element));
  }

  // Waits until all members have copied in the piece of this number.
  void barrier(std::int64_t number) {
    Slot& slot = issued.slot();
    const auto target = static_cast<std::uint64_t>(number + 1) * static_cast<std::uint64_t>(size);
    if (slot.barrier_arrivals.fetch_add(1) + 1 == target) notify(slot.changes);
    wait_until(issued, WaitReason::staging_barrier, target);
  }

  bool has_input() const {
    const bool from_one = kind == Operation::broadcast || kind == Operation::scatter || kind == Operation::send;
    return !from_one || issued.me == root;
  }

  void copy_in(std::int64_t number, std::int64_t begin, std::int64_t n) {
    if (!has_input()) return;
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
  Operation kind = Operation::barrier;
  bool is_exchange = false;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t element = 1, count = 0, shards = 1, half = 0, piece = 1;
  std::int64_t moved_in = 0, moved_out = 0;
};

}  // namespace

void run_staged(IssuedCollective& issued) {
  Staging staging(issued);
  std::int64_t number = 0;
  for (std::int64_t begin = 0; begin < staging.count; begin += staging.piece, ++number) {
    const std::int64_t n = std::min(staging.piece, staging.count - begin);
    staging.copy_in(number, begin, n);
    staging.barrier(number);
    staging.copy_out(number, begin, n);
  }
  staging.entries[issued.me].moved_bytes.fetch_add(std::max(staging.moved_in, staging.moved_out));
}

}  // namespace lockstep::comm
