// The recorder behind trace.hpp (internal to engine/device). Records have stable addresses, so that a worker thread can
// write the times of a launch while the rank's own thread issues others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/device/queue.hpp"
#include "engine/device/stream.hpp"
#include "engine/device/trace.hpp"

namespace lockstep::device {

class TraceRecord {
 public:
  // In the body, on its queue.
  void begin(Queue& queue) {
    begin_ns.store(now(), std::memory_order_relaxed);
    begin_stamp.store(queue.stamp(), std::memory_order_release);
  }
  void resume() { resumed_ns.store(now(), std::memory_order_relaxed); }
  void end(Queue& queue) {
    end_ns.store(now(), std::memory_order_relaxed);
    end_stamp.store(queue.stamp(), std::memory_order_release);
  }
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  TracedLaunch fixed;  // all fields except the times below
  std::atomic<std::int64_t> begin_ns{0}, resumed_ns{0}, end_ns{0};
  std::atomic<const Stamp*> begin_stamp{nullptr}, end_stamp{nullptr};  // of the device, if it has a clock of its own
};

class Tracer {
 public:
  Tracer(const RankContext& context, TraceOptions options) : context_(context), options_(std::move(options)) {}

  // Records a launch that is being issued, and the clock of its stream. Returns null if max_launches is reached.
  TraceRecord* add(const Stream& stream, const char* name, bool deferred, const Clocks& known);
  void memory_changed(const MemoryStats& stats);
  Trace snapshot() const;

 private:
  const RankContext& context_;
  TraceOptions options_;
  std::deque<TraceRecord> records_;
  std::map<int, std::string> streams_;
  std::int64_t num_dropped_ = 0;
  // `width_` consecutive changes: the one with the most bytes, and the last one.
  struct Changes {
    MemorySample peak;
    MemorySample last;
  };
  std::vector<Changes> memory_;
  std::int64_t num_changes_ = 0;
  std::int64_t width_ = 1;
};

}  // namespace lockstep::device
