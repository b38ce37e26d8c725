#include "engine/comm/bench_support.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Bytes read and written for each byte of `bytes`, all ranks together.
std::int64_t touches(Operation operation, int world_size) {
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
      throw Error(str("no timing of ", name_of(operation)),
                  "one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast");
  }
}

constexpr std::int64_t rotated_bytes = std::int64_t{128} << 20;  // of all ranks together

struct Buffers {
  Tensor input, output;
};

// One set of buffers, and the call on it.
class Subject {
 public:
  Subject(const BenchOptions& options, ProcessGroup& group) : options_(options), group_(group) {
    call_.family = Family::uncounted;
    const auto size = static_cast<std::int64_t>(group.size());
    part_ = std::max<std::int64_t>(options.bytes / 4 / size, 1);
  }

  Buffers make() const {
    const device::PurposeScope scope(device::Purpose::communication);
    const auto tensor = [&](std::int64_t elements) { return full({elements}, 1.0, DType::float32, options_.device); };
    const std::int64_t whole = part_ * group_.size();
    switch (options_.operation) {
      case Operation::all_reduce:
      case Operation::broadcast:
        return {tensor(whole), {}};
      case Operation::all_gather:
        return {tensor(part_), tensor(whole)};
      case Operation::reduce_scatter:
        return {tensor(whole), tensor(part_)};
      case Operation::all_to_all:
        return {tensor(whole), tensor(whole)};
      default:
        break;
    }
    throw Error(str("no buffers for ", name_of(options_.operation)));
  }

  void dirty(const Buffers& buffers, int round) const {
    const device::Access access = write(buffers.input);
    device::launch(device::current_stream(options_.device), "dirty", {access},
                   [bytes = access.bytes, round](const device::Pointers& pointers) {
                     std::memset(pointers.at(0), round & 31, bytes);
                   });
  }

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
    const std::int64_t a_set = std::max<std::int64_t>(options_.bytes * group_.size(), 1);
    return static_cast<int>(std::clamp<std::int64_t>(rotated_bytes / a_set, 2, 8));
  }
  const Call& call() const { return call_; }

 private:
  BenchOptions options_;
  ProcessGroup& group_;
  Call call_;
  std::int64_t part_;
};

}  // namespace

double BenchTimings::at(double share) const {
  if (microseconds.empty()) return 0.0;
  const auto last = static_cast<double>(microseconds.size() - 1);
  return microseconds[static_cast<std::size_t>(std::lround(share * last))];
}

BenchTimings time_collective(const BenchOptions& options) {
  if (options.rounds < 1) throw Error(str(options.rounds, " rounds of a timing"), "make at least one");
  ProcessGroup& group = world_group();
  touches(options.operation, group.size());  // throws for what is not timed
  const Subject subject(options, group);
  std::vector<Buffers> sets;
  sets.reserve(static_cast<std::size_t>(subject.num_sets()));
  for (int i = 0; i < subject.num_sets(); ++i) sets.push_back(subject.make());
  std::vector<std::int64_t> times;  // in, out, in, out, ...
  const int warm_up = std::max(options.warm_up, 2 * subject.num_sets());
  for (int round = -warm_up; round < options.rounds; ++round) {
    const Buffers& buffers = sets[static_cast<std::size_t>(round + warm_up) % sets.size()];
    subject.dirty(buffers, round);
    device::current_stream(options.device).synchronize();
    barrier(group, subject.call());
    const std::int64_t in = now_ns();
    subject.run(buffers);
    const std::int64_t out = now_ns();
    // Ranks that share a core: who is out first must not write the next input while others are still to come out.
    barrier(group, subject.call());
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
  return touches(operation, world_size) * bytes;
}

std::int64_t bytes_that_touch(Operation operation, int world_size, std::int64_t touched) {
  return touched / touches(operation, world_size);
}

}  // namespace lockstep::comm
