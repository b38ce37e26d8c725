#include "engine/device/cuda/shared.hpp"

#include <utility>

#include "engine/device/tracer.hpp"

namespace lockstep::device::cuda {

Shared::~Shared() {
  for (const std::shared_ptr<Mark>& mark : marks_) calls.destroy_event(mark->event);
}

std::shared_ptr<Mark> Shared::take_mark() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    const std::shared_ptr<Mark>& mark = marks_[(next_ + i) % marks_.size()];
    if (mark.use_count() != 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // the last owner's uses come before
    next_ = (next_ + i + 1) % marks_.size();
    return mark;
  }
  auto mark = std::make_shared<Mark>();
  marks_.reserve(marks_.size() + 1);
  mark->event = calls.create_event(false);
  return marks_.emplace_back(std::move(mark));
}

Shared::TimedEvent::TimedEvent(Shared& of, StreamHandle stream) : shared_(of), event_(of.calls.create_event(true)) {
  try {
    of.calls.record_event(event_, stream);
  } catch (...) {
    of.calls.destroy_event(event_);
    throw;
  }
}

std::int64_t Shared::TimedEvent::nanoseconds() const {
  constexpr double per_millisecond = 1e6;
  if (!shared_.calls.event_done(event_)) return 0;
  const double since_base = shared_.calls.milliseconds_between(shared_.base_->event(), event_);
  return shared_.base_ns_ + static_cast<std::int64_t>(since_base * per_millisecond);
}

const Stamp* Shared::stamp(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) {
    auto base = std::make_unique<TimedEvent>(*this, stream);
    calls.synchronize_event(base->event());
    base_ns_ = TraceRecord::now();
    base_ = std::move(base);
  }
  return &stamps_.emplace_back(*this, stream);
}

}  // namespace lockstep::device::cuda
