#include "engine/comm/transport.hpp"

#include <algorithm>
#include <vector>

#include "engine/comm/reduce.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t large_bytes = std::int64_t{1} << 20;
constexpr std::int64_t large_chunk_bytes = std::int64_t{256} << 10;  // of each buffer of two ranks
constexpr std::int64_t least_chunk_bytes = std::int64_t{16} << 10;
constexpr std::int64_t at_once_bytes = std::int64_t{16} << 10;

Operation kind_of(const Fingerprint& fingerprint) { return static_cast<Operation>(fingerprint.kind); }

// The members' buffers, as lists; outputs from so many bytes on, null where a member has none.
struct Buffers {
  Buffers(const Line* lines, int size, std::size_t output_offset = 0) {
    const auto count = static_cast<std::size_t>(size);
    if (count > few) {
      many_inputs.resize(count);
      many_outputs.resize(count);
      inputs = many_inputs.data();
      outputs = many_outputs.data();
    }
    for (std::size_t i = 0; i < count; ++i) {
      inputs[i] = lines[i].input;
      outputs[i] = lines[i].output == nullptr ? nullptr : lines[i].output + output_offset;
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

// Elements [begin, end) of the collective's range. A member's count grows by the bytes of its input or output that
// copy() and reduce() report as stored.
void run_range(Line* lines, int size, const Cut& cut, std::int64_t begin, std::int64_t end) {
  const Fingerprint& what = lines[0].fingerprint;
  const Operation kind = kind_of(what);
  const auto dtype = static_cast<DType>(what.dtype);
  const auto op = static_cast<ReduceOp>(what.op);
  const std::size_t element = size_of(dtype);
  const std::int64_t part = what.count;
  const auto count = static_cast<std::size_t>(size);
  const auto account = [&](int member, std::size_t stored) {
    lines[member].moved.fetch_add(static_cast<std::int64_t>(stored), std::memory_order_relaxed);
  };
  const auto account_all = [&](std::size_t stored) {
    for (int member = 0; member < size; ++member) account(member, stored);
  };
  const auto account_both = [&](int member, std::size_t stored) {  // the root and its peer
    account(what.root, stored);
    if (member != what.root) account(member, stored);
  };
  const auto bytes = [&](std::int64_t elements) { return bounded_bytes(elements, element); };
  switch (kind) {
    case Operation::all_reduce: {
      const Buffers buffers(lines, size);
      account_all(
          reduce({dtype, op, {buffers.inputs, count}, {buffers.outputs, count}, op == ReduceOp::mean ? size : 1, false},
                 begin, end - begin));
      return;
    }
    case Operation::broadcast:
    case Operation::send:
    case Operation::receive: {
      // What all have just been using is broadcast more often than not: their lines lie in caches.
      const Buffers places(lines, size, bytes(begin));
      account_all(
          copy_to_all({places.outputs, count}, lines[what.root].input + bytes(begin), bytes(end - begin), false));
      return;
    }
    case Operation::barrier:
      return;
    default:
      break;
  }
  // The others work part by part.
  const Buffers buffers(lines, kind == Operation::reduce_scatter ? size : 0);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t index = at / part;
    const std::int64_t stop = std::min(end, (index + 1) * part);
    const std::int64_t within = at - index * part, n = stop - at;
    const auto member = static_cast<int>(index % size);
    switch (kind) {
      case Operation::all_gather: {
        const Buffers places(lines, size, bytes(at));
        account_all(copy_to_all({places.outputs, count}, lines[member].input + bytes(within), bytes(n), cut.streams));
        break;
      }
      case Operation::reduce_scatter: {
        // The output holds one part: shifted back so that both sides count elements from the same start.
        std::byte* output = lines[member].output - bytes(index * part);
        account_all(reduce(
            {dtype, op, {buffers.inputs, count}, {&output, 1}, op == ReduceOp::mean ? size : 1, cut.streams}, at, n));
        break;
      }
      case Operation::all_to_all: {
        const auto to = static_cast<int>(index / size);
        account(to, copy(lines[to].output + bytes(member * part + within),
                         lines[member].input + bytes(to * part + within), bytes(n), cut.streams));
        break;
      }
      case Operation::gather:
        account_both(member, copy(lines[what.root].output + bytes(at), lines[member].input + bytes(within), bytes(n),
                                  cut.streams));
        break;
      case Operation::scatter:
        account_both(member, copy(lines[member].output + bytes(within), lines[what.root].input + bytes(at), bytes(n),
                                  cut.streams));
        break;
      default:
        break;
    }
    at = stop;
  }
}

std::int64_t num_parts(Operation kind, std::int64_t size) {
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

// An element of the range lies in a buffer of every member.
bool touches_all(Operation kind) {
  return kind == Operation::all_reduce || kind == Operation::reduce_scatter || kind == Operation::all_gather ||
         kind == Operation::broadcast;
}

// Small enough for one rank to compute alone.
bool is_small(const Fingerprint& what, const Cut& cut) {
  return cut.num_chunks <= 1 &&
         bounded_product(cut.total, static_cast<std::int64_t>(size_of(static_cast<DType>(what.dtype)))) <=
             at_once_bytes;
}

}  // namespace

Cut cut_of(const Fingerprint& fingerprint, int size) {
  Cut cut;
  if (fingerprint.kind == exchange_kind) return cut;
  cut.total = bounded_product(fingerprint.count, num_parts(kind_of(fingerprint), size));
  if (cut.total == 0) return cut;
  const auto element = static_cast<std::int64_t>(size_of(static_cast<DType>(fingerprint.dtype)));
  const std::int64_t bytes = bounded_product(cut.total, element);
  std::int64_t chunk_bytes = bytes;
  // Chunks are of one size in bytes touched: more buffers, shorter pieces of each.
  if (bytes >= large_bytes)
    chunk_bytes = touches_all(kind_of(fingerprint))
                      ? std::max(bounded_product(large_chunk_bytes, 2) / size, least_chunk_bytes)
                      : large_chunk_bytes;
  else if (bytes > at_once_bytes)
    chunk_bytes = (bytes / size + 63) / 64 * 64;
  cut.chunk = std::max<std::int64_t>(chunk_bytes / element, 1024);
  cut.num_chunks = (cut.total + cut.chunk - 1) / cut.chunk;
  cut.streams = bytes >= large_bytes;
  return cut;
}

bool run_at_once(Slot& slot, int size) {
  const Cut cut = cut_of(slot.lines()[0].fingerprint, size);
  if (!is_small(slot.lines()[0].fingerprint, cut)) return false;
  if (cut.total > 0) run_range(slot.lines(), size, cut, 0, cut.total);
  return true;
}

bool run_chunks(Slot& slot, int size) {
  const Cut cut = cut_of(slot.lines()[0].fingerprint, size);
  bool finished = false;
  for (;;) {
    const auto chunk = static_cast<std::int64_t>(slot.next_chunk.fetch_add(1, std::memory_order_relaxed));
    if (chunk >= cut.num_chunks) return finished;
    run_range(slot.lines(), size, cut, chunk * cut.chunk, std::min(cut.total, (chunk + 1) * cut.chunk));
    if (slot.done_chunks.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(cut.num_chunks))
      finished = true;
  }
}

void reach_buffers(const Issued& issued) {
  Reach* reach = issued.rank->reach.get();
  if (reach == nullptr) return;
  const int size = issued.group->size;
  const Line* lines = issued.slot().lines();
  const Fingerprint& what = lines[0].fingerprint;
  const Operation kind = kind_of(what);
  if (is_small(what, cut_of(what, size))) return;
  const bool inputs_of_all =
      kind == Operation::reduce_scatter || kind == Operation::all_to_all || kind == Operation::scatter;
  const bool outputs_of_all =
      kind == Operation::all_gather || kind == Operation::all_to_all || kind == Operation::gather;
  const std::size_t part = bounded_bytes(what.count, size_of(static_cast<DType>(what.dtype)));
  const auto whole = bounded_product(part, static_cast<std::size_t>(size));
  if (whole < Reach::least_bytes) return;
  for (int member = 0; member < size; ++member) {
    if (member == issued.me) continue;
    const int rank = issued.group->members()[member];
    const Line& line = lines[member];
    reach->meet(rank, line.input, inputs_of_all ? whole : part);
    if (line.output != line.input) reach->meet(rank, line.output, outputs_of_all ? whole : part);
  }
}

bool lies_outside(const Issued& issued) {
  if (issued.rank->world->processes == 0 || issued.rank->host == nullptr) return false;
  const device::HostWorld& host = *issued.rank->host;
  const int rank = issued.rank->rank;
  const auto reachable = [&](const std::byte* pointer) {
    return pointer == nullptr || host.cpu_arena(rank).contains(pointer) || host.sim_arena(rank).contains(pointer);
  };
  return !reachable(issued.input) || !reachable(issued.output);
}

}  // namespace lockstep::comm
