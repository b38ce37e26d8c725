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
  int warm_up = 5;
  device::Device device = {};
};

struct BenchTimings {
  std::vector<double> microseconds;  // sorted; of a call: last rank out minus last rank in
  double at(double share) const;     // the timing below which this share of them lies
  double median() const { return at(0.5); }
};

// Float32, on the world group, uncounted. Every round takes another set of buffers and writes its input first; ranks
// meet before each call. The same result on every rank. The order check stays as it is: switch it off first.
BenchTimings time_collective(const BenchOptions& options);

}  // namespace lockstep::comm
