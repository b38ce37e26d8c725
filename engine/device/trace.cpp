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

}  // namespace

TraceRecord* Tracer::add(const Stream& stream, const char* name, bool deferred) {
  deferred = std::exchange(next_is_deferred_, false) || deferred;
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
  record.fixed.issued_ns = TraceRecord::now();
  if (!streams_.contains(stream.id())) streams_[stream.id()] = stream.name();
  return &record;
}

void Tracer::memory_changed(const MemoryStats& stats) {
  last_ = {TraceRecord::now(), stats.current};
  const std::size_t at = static_cast<std::size_t>(num_changes_++ / width_);
  if (at < samples_.size()) {
    if (total(last_) >= total(samples_[at])) samples_[at] = last_;
    return;
  }
  if (samples_.size() >= std::max<std::size_t>(options_.max_samples, 2) - 1) {
    // Pairs join; with an odd number the last one is only half full and goes on to be filled.
    std::size_t kept = 0;
    for (std::size_t i = 0; i < samples_.size(); i += 2) {
      const bool second = i + 1 < samples_.size() && total(samples_[i + 1]) >= total(samples_[i]);
      samples_[kept++] = samples_[second ? i + 1 : i];
    }
    samples_.resize(kept);
    width_ *= 2;
    --num_changes_;
    return memory_changed(stats);
  }
  samples_.push_back(last_);
}

Trace Tracer::snapshot() const {
  Trace trace;
  trace.num_dropped = num_dropped_;
  trace.launches.reserve(records_.size());
  for (const TraceRecord& record : records_) {
    TracedLaunch& launch = trace.launches.emplace_back(record.fixed);
    launch.begin_ns = record.begin_ns.load(std::memory_order_relaxed);
    launch.resumed_ns = record.resumed_ns.load(std::memory_order_relaxed);
    launch.end_ns = record.end_ns.load(std::memory_order_relaxed);
  }
  trace.memory = samples_;
  if (!samples_.empty() && samples_.back().time_ns != last_.time_ns) trace.memory.push_back(last_);
  for (const auto& [id, name] : streams_) trace.streams.push_back({id, name});
  return trace;
}

void Runtime::start_trace(TraceOptions options) {
  if (tracer_ != nullptr) throw Error("this rank is traced already", "start the trace once a rank");
  tracer_ = std::make_shared<Tracer>(*context_, std::move(options));
  tracer_->memory_changed(stats);
  choose_ways();
}

void start_trace(TraceOptions options) { Runtime::current().start_trace(std::move(options)); }
bool tracing() { return Runtime::current().tracer() != nullptr; }
Trace trace() {
  const Tracer* tracer = Runtime::current().tracer();
  return tracer == nullptr ? Trace{} : tracer->snapshot();
}

}  // namespace lockstep::device
