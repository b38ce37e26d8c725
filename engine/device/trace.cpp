#include "engine/device/trace.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/device/runtime.hpp"
#include "engine/device/tracer.hpp"

namespace lockstep::device {

namespace {

std::int64_t total(const MemorySample& sample) {
  return std::accumulate(sample.bytes.begin(), sample.bytes.end(), std::int64_t{0});
}

// The device's time of a point, or 0 until it is there. The clocks agree to some microseconds, so `least` keeps the
// order.
std::int64_t time_of(const std::atomic<const Stamp*>& stamp, std::int64_t host_ns, std::int64_t least) {
  const Stamp* const of_device = stamp.load(std::memory_order_acquire);
  if (of_device == nullptr) return host_ns;
  const std::int64_t time = of_device->nanoseconds();
  return time == 0 ? 0 : std::max(time, least);
}

}  // namespace

TraceRecord* Tracer::add(const Stream& stream, const char* name, bool deferred, const Clocks& known) {
  if (records_.size() >= options_.max_launches) {
    ++num_dropped_;
    return nullptr;
  }
  TraceRecord& record = records_.emplace_back();
  record.fixed.name = name;
  record.fixed.stream = stream.id();
  record.fixed.deferred = deferred;
  if (deferred && options_.tag) record.fixed.tag = options_.tag();
  record.fixed.iteration = context_.iteration;
  record.fixed.scenario_line = context_.scenario_line;
  record.fixed.known = known;
  record.fixed.issued_ns = TraceRecord::now();
  if (!streams_.contains(stream.id())) streams_[stream.id()] = stream.name();
  return &record;
}

void Tracer::memory_changed(const MemoryStats& stats) {
  const MemorySample now{TraceRecord::now(), stats.current};
  const std::size_t max_entries = 2 * std::max<std::size_t>(options_.max_samples / 4, 1);  // of up to two samples each
  std::size_t at = static_cast<std::size_t>(num_changes_ / width_);
  if (at >= max_entries) {
    // Merges pairs of entries.
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (i % 2 == 0) {
        memory_[i / 2] = memory_[i];
      } else {
        if (total(memory_[i].peak) > total(memory_[i / 2].peak)) memory_[i / 2].peak = memory_[i].peak;
        memory_[i / 2].last = memory_[i].last;
      }
    }
    memory_.resize(max_entries / 2);
    width_ *= 2;
    at = static_cast<std::size_t>(num_changes_ / width_);
  }
  ++num_changes_;
  if (at == memory_.size()) {
    memory_.push_back({now, now});
    return;
  }
  if (total(now) > total(memory_[at].peak)) memory_[at].peak = now;
  memory_[at].last = now;
}

Trace Tracer::snapshot() const {
  Trace trace;
  trace.num_dropped = num_dropped_;
  trace.launches.reserve(records_.size());
  for (const TraceRecord& record : records_) {
    TracedLaunch& launch = trace.launches.emplace_back(record.fixed);
    launch.begin_ns = time_of(record.begin_stamp, record.begin_ns.load(std::memory_order_relaxed), launch.issued_ns);
    launch.resumed_ns = record.resumed_ns.load(std::memory_order_relaxed);
    launch.end_ns = time_of(record.end_stamp, record.end_ns.load(std::memory_order_relaxed), launch.begin_ns);
  }
  for (const Changes& changes : memory_) {
    trace.memory.push_back(changes.peak);
    if (changes.last.time_ns != changes.peak.time_ns) trace.memory.push_back(changes.last);
  }
  for (const auto& [id, name] : streams_) trace.streams.push_back({id, name});
  return trace;
}

void Runtime::start_trace(TraceOptions options) {
  if (tracer_ != nullptr) throw Error("start_trace: this rank is traced already", "start one trace per rank");
  tracer_ = std::make_shared<Tracer>(*context_, std::move(options));
  tracer_->memory_changed(stats);
  update_instrumented();
}

void start_trace(TraceOptions options) { Runtime::current().start_trace(std::move(options)); }
bool tracing() { return Runtime::current().tracer() != nullptr; }
Trace trace() {
  const Tracer* tracer = Runtime::current().tracer();
  return tracer == nullptr ? Trace{} : tracer->snapshot();
}

}  // namespace lockstep::device
