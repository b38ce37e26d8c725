// Times a collective for `lockstep bench collectives`. All ranks of a running case call it with the same options.
//
//   BenchTimings t = time_collective({.operation = Operation::all_reduce, .bytes = 1 << 20, .rounds = 50});
//   print(t.median(), t.at(0.1), t.at(0.9));
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/process_group.hpp"

namespace lockstep::comm {

struct BenchOptions {
  Operation operation = Operation::all_reduce;  // all_reduce, all_gather, reduce_scatter, all_to_all or broadcast
  std::int64_t bytes = 1024;  // of the larger of a rank's input and output; rounded down to equal shards
  int rounds = 50;
  int warm_up = 5;  // minimum number of untimed rounds; every set of buffers is used twice in any case
  device::Device device = {};
};

struct BenchTimings {
  std::vector<double> microseconds;  // sorted; per call from the last rank's entry to the last rank's exit
  double at(double share) const;     // the quantile: `share` from 0 to 1
  double median() const { return at(0.5); }
};

// Times float32 collectives on the world group, as Family::uncounted. Each round uses another set of buffers and writes
// its input first; a barrier precedes each call. All sets are used before the timing starts, as in a running training.
// All ranks return the same result. The caller switches the order check off first. Throws Error for an operation that
// is not timed, or for less than one round.
BenchTimings time_collective(const BenchOptions& options);

// The bytes that any algorithm must access: every byte of every rank's input is read once, and every byte of every
// rank's output is written once. With n bytes in the larger of a rank's input and output, W ranks access 2 W n bytes in
// an all_reduce or all_to_all, (W + 1) n in an all_gather or reduce_scatter, and W n in a broadcast. Timings of two
// world sizes are comparable when these numbers are equal.
std::int64_t touched_bytes(Operation operation, int world_size, std::int64_t bytes);
// The inverse: the size `bytes` at which this many ranks access about `touched` bytes.
std::int64_t bytes_that_touch(Operation operation, int world_size, std::int64_t touched);

}  // namespace lockstep::comm
