// The trace of a rank: every launch with its stream, begin and end, and the changes of the memory in use.
//
// It is off by default and then costs launches nothing: only the launches of a traced rank are instrumented
// (stream.hpp, is_instrumented), and an allocation checks one pointer. Times are steady_clock nanoseconds, which all
// ranks of a machine share, so the traces of ranks can be compared.
//
// All functions act on the current rank and run on its own thread. Names are the literals of the launches.
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
#include "engine/device/order.hpp"

namespace lockstep::device {

struct TraceOptions {
  std::size_t max_launches = 20000;  // further launches are counted and dropped
  // Maximum number of memory samples. Beyond it, neighbouring samples are merged; the peak and the last of them are
  // kept.
  std::size_t max_samples = 2000;
  // Called when a deferred launch (a collective) is issued. The result is stored with the launch.
  std::function<std::uint64_t()> tag = {};
};

struct TracedLaunch {
  const char* name = "";
  int stream = 0;         // stream id, as in Trace::streams
  bool deferred = false;  // issued by launch_deferred
  std::uint64_t tag = 0;
  int iteration = -1;  // iteration and line of the scenario at the time of issue
  int scenario_line = 0;
  std::int64_t issued_ns = 0;
  std::int64_t begin_ns = 0;    // 0 if it never began
  std::int64_t resumed_ns = 0;  // begin of the second half of a deferred launch; 0 if both halves ran together
  std::int64_t end_ns = 0;      // 0 if it failed or never ended
  Clocks known{};               // the clock of its stream at its issue; zeros if the order check is off
};

// Whether the streams, their events and the waits of the host order `later` after `earlier`, in every run. Two launches
// that are ordered neither way may run at the same time. Needs the order check.
inline bool ordered(const TracedLaunch& earlier, const TracedLaunch& later) {
  const auto of = static_cast<std::size_t>(earlier.stream);
  return later.known[of] >= earlier.known[of];
}

// The bytes in use per purpose, after an allocation, a release or a change of purpose.
struct MemorySample {
  std::int64_t time_ns = 0;
  std::array<std::int64_t, num_purposes> bytes{};
};

struct TracedStream {
  int id = 0;
  std::string name;  // "sim:0/compute"
};

struct Trace {
  std::vector<TracedLaunch> launches;  // in order of issue
  std::int64_t num_dropped = 0;
  std::vector<MemorySample> memory;   // in order of time; always includes the peak and the last change
  std::vector<TracedStream> streams;  // streams with launches, by id
};

// Traces the rank until its end. Throws Error if the rank is traced already.
void start_trace(TraceOptions options);
bool tracing();
// The trace so far; empty if the rank is not traced. Launches that are still running have no end.
Trace trace();

}  // namespace lockstep::device
