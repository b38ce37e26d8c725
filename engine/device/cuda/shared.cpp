#include "engine/device/cuda/shared.hpp"

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

}  // namespace lockstep::device::cuda
