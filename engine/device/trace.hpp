// What a rank did when: every launch with its stream and its begin and end, and the memory in use as it changed.
//
// Off by default, and then without cost for launches: a traced rank's inline launches take the long way that poison
// mode takes too (stream.hpp, is_wrapped), and allocations ask one pointer. Times are steady_clock nanoseconds,
// which all ranks of a machine share, so that ranks can be set beside each other.
//
// All functions concern the current rank and are called on its own thread. Names are the literals of the launches.
//
//   start_trace({.max_launches = 20000, .tag = [] { return comm::log().size(); }});
//   ...
//   synchronize_all();
//   for (const TracedLaunch& launch : trace().launches) ...
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/device.hpp"

namespace lockstep::device {

struct TraceOptions {
  std::size_t max_launches = 20000;  // what comes later is counted and dropped
  std::size_t max_samples = 2000;    // of memory; when more come, neighbours join: their peak and their last stay
  // Asked when a deferred launch (a collective) is issued; its answer is kept with the launch.
  std::function<std::uint64_t()> tag = {};
};

struct TracedLaunch {
  const char* name = "";
  int stream = 0;         // id of the stream, as in Trace::streams
  bool deferred = false;  // issued by launch_deferred
  std::uint64_t tag = 0;
  int iteration = -1;  // of the scenario, and its line, when it was issued
  int scenario_line = 0;
  std::int64_t issued_ns = 0;
  std::int64_t begin_ns = 0;    // 0: it never began
  std::int64_t resumed_ns = 0;  // when the second half of a deferred launch began; 0 where halves ran as one
  std::int64_t end_ns = 0;      // 0: it failed, or never ended
};

// Bytes in use by purpose right after an allocation, a release or a change of purpose.
struct MemorySample {
  std::int64_t time_ns = 0;
  std::array<std::int64_t, num_purposes> bytes{};
};

struct TracedStream {
  int id = 0;
  std::string name;  // "sim:0/compute"
};

struct Trace {
  std::vector<TracedLaunch> launches;  // in the order they were issued
  std::int64_t num_dropped = 0;
  std::vector<MemorySample> memory;   // in order of time; the peak and the last change are always there
  std::vector<TracedStream> streams;  // those with launches, by id
};

// Throws Error when the rank is traced already. To the end of the rank.
void start_trace(TraceOptions options);
bool tracing();
// What was recorded so far; empty when the rank is not traced. Launches that still run have no end yet.
Trace trace();

}  // namespace lockstep::device
