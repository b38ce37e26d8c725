// The staged form of every collective: for buffers that peers cannot reach, and for exchanges of byte strings.
#include <algorithm>
#include <vector>

#include "engine/comm/reduce.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Half a member's staging area: one piece is copied in while peers read the other.
constexpr std::int64_t small_half = 2048;
std::int64_t large_half(int size) { return size <= 16 ? 65536 : 16384; }

struct Staging {
  explicit Staging(Issued& which) : issued(which), size(which.group->size), lines(which.slot().lines()) {
    const Fingerprint& what = lines[0].fingerprint;
    kind = what.kind == exchange_kind ? Operation::all_gather : static_cast<Operation>(what.kind);
    is_exchange = what.kind == exchange_kind;
    dtype = is_exchange ? DType::boolean : static_cast<DType>(what.dtype);
    op = static_cast<ReduceOp>(what.op);
    root = what.root;
    element = static_cast<std::int64_t>(size_of(dtype));
    for (int member = 0; member < size; ++member) count = std::max(count, lines[member].fingerprint.count);
    parts = kind == Operation::reduce_scatter || kind == Operation::all_to_all || kind == Operation::scatter ? size : 1;
    half = count * element * parts <= small_half ? small_half : large_half(size);
    piece = std::max<std::int64_t>(half / (parts * element), 1);
    LOCKSTEP_CHECK(piece * parts * element <= half, parts, " parts do not fit a staging area of ", half, " bytes");
    take_memory();
  }

  // The area stays with the line and serves later collectives of the slot; its lowest bit tells the larger kind.
  void take_memory() {
    Line& mine = lines[issued.me];
    const bool large = half != small_half;
    if (mine.staging != 0 && (!large || (mine.staging & 1) != 0)) return;
    WorldControl& world = *issued.rank->world;
    mine.staging = allocate_control(world, static_cast<std::size_t>(2 * half)) | (large ? 1 : 0);
  }

  std::byte* area(int member, std::int64_t number) const {
    return issued.rank->world->at((lines[member].staging & ~std::uint64_t{1}) +
                                  static_cast<std::uint64_t>((number % 2) * half));
  }
  // Where part `index` of a member's piece lies.
  std::byte* staged_part(int member, std::int64_t number, int index) const {
    return area(member, number) + index * piece * element;
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(bounded_product(elements, element));
  }

  void meet(std::int64_t round) {
    Slot& slot = issued.slot();
    const auto target = static_cast<std::uint64_t>(round + 1) * static_cast<std::uint64_t>(size);
    if (slot.rounds.fetch_add(1) + 1 == target) ring(slot.bell);
    wait_until(issued, Waiting::round, target);
  }

  bool brings() const {
    const bool from_one = kind == Operation::broadcast || kind == Operation::scatter || kind == Operation::send;
    return !from_one || issued.me == root;
  }

  void copy_in(std::int64_t number, std::int64_t begin, std::int64_t n) {
    if (!brings()) return;
    const std::int64_t mine = lines[issued.me].fingerprint.count;
    n = std::min(n, mine - begin);
    if (n <= 0) return;
    const std::byte* input =
        is_exchange ? reinterpret_cast<const std::byte*>(issued.exchange_input->data()) : issued.input;
    for (int index = 0; index < parts; ++index) {
      moved_in += static_cast<std::int64_t>(
          copy(staged_part(issued.me, number, index), input + bytes(index * count + begin), bytes(n), false));
    }
  }

  void take(std::byte* to, const std::byte* from, std::int64_t n) {
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
          inputs.push_back(staged_part(member, number, kind == Operation::reduce_scatter ? me : 0));
        output += bytes(begin);
        moved_out += static_cast<std::int64_t>(
            reduce({dtype, op, inputs, {&output, 1}, op == ReduceOp::mean ? size : 1, false}, 0, n));
        return;
      }
      case Operation::all_gather:
        for (int from = 0; from < size; ++from) {
          if (!is_exchange) {
            take(output + bytes(from * count + begin), staged_part(from, number, 0), n);
          } else {
            const std::int64_t here = std::min(n, lines[from].fingerprint.count - begin);
            if (here > 0)
              (*issued.exchanged)[static_cast<std::size_t>(from)].append(
                  reinterpret_cast<const char*>(staged_part(from, number, 0)), bytes(here));
          }
        }
        return;
      case Operation::all_to_all:
        for (int from = 0; from < size; ++from)
          take(output + bytes(from * count + begin), staged_part(from, number, me), n);
        return;
      case Operation::gather:
        if (me != root) return;
        for (int from = 0; from < size; ++from)
          take(output + bytes(from * count + begin), staged_part(from, number, 0), n);
        return;
      case Operation::scatter:
        take(output + bytes(begin), staged_part(root, number, me), n);
        return;
      case Operation::broadcast:
      case Operation::send:
      case Operation::receive:
        if (me != root) take(output + bytes(begin), staged_part(root, number, 0), n);
        return;
      case Operation::barrier:
        return;
    }
  }

  Issued& issued;
  int size;
  Line* lines;
  Operation kind = Operation::barrier;
  bool is_exchange = false;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t element = 1, count = 0, parts = 1, half = 0, piece = 1;
  std::int64_t moved_in = 0, moved_out = 0;
};

}  // namespace

void run_staged(Issued& issued) {
  Staging staging(issued);
  std::int64_t number = 0;
  for (std::int64_t begin = 0; begin < staging.count; begin += staging.piece, ++number) {
    const std::int64_t n = std::min(staging.piece, staging.count - begin);
    staging.copy_in(number, begin, n);
    staging.meet(number);
    staging.copy_out(number, begin, n);
  }
  staging.lines[issued.me].moved.fetch_add(std::max(staging.moved_in, staging.moved_out));
}

}  // namespace lockstep::comm
