// Timing a collective, for `lockstep bench collectives`: to be called by all ranks of a running case alike.
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
  std::int64_t bytes = 1024;  // of the larger of a rank's input and output; rounded down to whole equal parts
  int rounds = 50;
  int warm_up = 5;  // at least; every set of buffers is met twice before
  device::Device device = {};
};

struct BenchTimings {
  std::vector<double> microseconds;  // sorted; of a call: last rank out minus last rank in
  double at(double share) const;     // the timing below which this share of them lies
  double median() const { return at(0.5); }
};

// Float32, on the world group, uncounted. Every round takes another set of buffers and writes its input first; ranks
// meet before each call. All sets have met the collective before it is timed, as in a training that goes on. The same
// result on every rank. The order check stays as it is: switch it off first.
BenchTimings time_collective(const BenchOptions& options);

// What a collective cannot do without, whatever its algorithm: every byte of every rank's input read once and every
// byte of every rank's output written once, all ranks together. With n bytes in the larger of a rank's input and
// output, W ranks touch 2 W n in an all_reduce or all_to_all, (W + 1) n in an all_gather or reduce_scatter, W n in a
// broadcast. Two numbers of ranks are compared fairly when they touch the same.
std::int64_t touched_bytes(Operation operation, int world_size, std::int64_t bytes);
// The size with which so many ranks touch (about) that much.
std::int64_t bytes_that_touch(Operation operation, int world_size, std::int64_t touched);

}  // namespace lockstep::comm
