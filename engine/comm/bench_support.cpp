#include "engine/comm/bench_support.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::comm {

namespace {

// Bytes that all ranks together read and write per byte of BenchOptions::bytes.
std::int64_t touched_per_byte(Operation operation, int world_size) {
  switch (operation) {
    case Operation::all_reduce:
    case Operation::all_to_all:
      return 2 * world_size;
    case Operation::all_gather:
    case Operation::reduce_scatter:
      return world_size + 1;
    case Operation::broadcast:
      return world_size;
    default:
      throw Error(str("a timing of ", name_of(operation), " is not available"),
                  "time all_reduce, all_gather, reduce_scatter, all_to_all or broadcast");
  }
}

constexpr std::int64_t rotated_bytes = std::int64_t{128} << 20;  // of all sets of buffers of all ranks

struct Buffers {
  Tensor input, output;
};

// The timed collective: creates sets of buffers, writes inputs, and issues the call.
class TimedCollective {
 public:
  TimedCollective(const BenchOptions& options, ProcessGroup& group) : options_(options), group_(group) {
    call_.family = Family::uncounted;
    const auto size = static_cast<std::int64_t>(group.size());
    shard_ = std::max<std::int64_t>(options.bytes / 4 / size, 1);
  }

  Buffers make() const {
    const device::PurposeScope scope(device::Purpose::communication);
    const auto tensor = [&](std::int64_t elements) { return full({elements}, 1.0, DType::float32, options_.device); };
    const std::int64_t full_size = shard_ * group_.size();
    switch (options_.operation) {
      case Operation::all_reduce:
      case Operation::broadcast:
        return {tensor(full_size), {}};
      case Operation::all_gather:
        return {tensor(shard_), tensor(full_size)};
      case Operation::reduce_scatter:
        return {tensor(full_size), tensor(shard_)};
      case Operation::all_to_all:
        return {tensor(full_size), tensor(full_size)};
      default:
        break;
    }
    throw Error(str("no buffers for ", name_of(options_.operation)));
  }

  void write_input(const Buffers& buffers, int round) const { raw::fill_(buffers.input, round & 31); }

  void run(const Buffers& buffers) const {
    switch (options_.operation) {
      case Operation::all_reduce:
        return all_reduce(group_, buffers.input, ReduceOp::sum, call_).synchronize();
      case Operation::broadcast:
        return broadcast(group_, buffers.input, 0, call_).synchronize();
      case Operation::all_gather:
        return all_gather(group_, buffers.output, buffers.input, call_).synchronize();
      case Operation::reduce_scatter:
        return reduce_scatter(group_, buffers.output, buffers.input, ReduceOp::sum, call_).synchronize();
      default:
        return all_to_all(group_, buffers.output, buffers.input, call_).synchronize();
    }
  }

  int num_sets() const {
    const std::int64_t set_bytes = std::max<std::int64_t>(options_.bytes * group_.size(), 1);
    return static_cast<int>(std::clamp<std::int64_t>(rotated_bytes / set_bytes, 2, 8));
  }
  const Call& call() const { return call_; }

 private:
  BenchOptions options_;
  ProcessGroup& group_;
  Call call_;
  std::int64_t shard_;
};

}  // namespace

double BenchTimings::at(double share) const {
  if (microseconds.empty()) return 0.0;
  const auto last = static_cast<double>(microseconds.size() - 1);
  return microseconds[static_cast<std::size_t>(std::lround(share * last))];
}

BenchTimings time_collective(const BenchOptions& options) {
  if (options.rounds < 1) throw Error(str("a timing cannot have ", options.rounds, " rounds"), "ask for at least one");
  ProcessGroup& group = world_group();
  touched_per_byte(options.operation, group.size());  // throws for an operation that is not timed
  const TimedCollective timed(options, group);
  std::vector<Buffers> sets;
  sets.reserve(static_cast<std::size_t>(timed.num_sets()));
  for (int i = 0; i < timed.num_sets(); ++i) sets.push_back(timed.make());
  std::vector<std::int64_t> times;  // in, out, in, out, ...
  const int warm_up = std::max(options.warm_up, 2 * timed.num_sets());
  for (int round = -warm_up; round < options.rounds; ++round) {
    const Buffers& buffers = sets[static_cast<std::size_t>(round + warm_up) % sets.size()];
    timed.write_input(buffers, round);
    device::current_stream(options.device).synchronize();
    barrier(group, timed.call());
    const std::int64_t in = now_ns();
    timed.run(buffers);
    const std::int64_t out = now_ns();
    // On a shared core, the first rank to leave must not write its next input before the others have left.
    barrier(group, timed.call());
    if (round < 0) continue;
    times.push_back(in);
    times.push_back(out);
  }
  const std::string mine(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(std::int64_t));
  std::vector<std::int64_t> last(times.size(), 0);
  for (const std::string& theirs : exchange(group, mine)) {
    for (std::size_t i = 0; i < last.size(); ++i) {
      std::int64_t time = 0;
      std::memcpy(&time, theirs.data() + i * sizeof time, sizeof time);
      last[i] = std::max(last[i], time);
    }
  }
  BenchTimings timings;
  for (std::size_t i = 0; i < last.size(); i += 2)
    timings.microseconds.push_back(static_cast<double>(last[i + 1] - last[i]) * 1e-3);
  std::sort(timings.microseconds.begin(), timings.microseconds.end());
  return timings;
}

std::int64_t touched_bytes(Operation operation, int world_size, std::int64_t bytes) {
  return touched_per_byte(operation, world_size) * bytes;
}

std::int64_t bytes_that_touch(Operation operation, int world_size, std::int64_t touched) {
  return touched / touched_per_byte(operation, world_size);
}

}  // namespace lockstep::comm
