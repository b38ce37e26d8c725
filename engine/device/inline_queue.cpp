#include "engine/device/inline_queue.hpp"

namespace lockstep::device {

void InlineQueue::issue(Body body, Pointers pointers, bool) {
  flush();
  body(pointers);
}

void InlineQueue::issue_in_halves(const Body& start, Body finish, Pointers pointers) {
  flush();
  start(pointers);
  halves_.push_back({++last_, std::move(finish), std::move(pointers)});
  has_deferred_ = true;
}

void InlineQueue::await(std::uint64_t number) {
  while (!halves_.empty() && halves_.front().number <= number) {
    const Half next = std::move(halves_.front());
    halves_.pop_front();  // before it runs: it may launch on this stream, or throw
    has_deferred_ = !halves_.empty();
    next.finish(next.pointers);
  }
}

void InlineQueue::clear_failure() {
  while (!halves_.empty()) {
    try {
      flush();
    } catch (...) {
      // Already reported. The failed item is out of the list.
    }
  }
}

void InlineQueue::drop_items() { const std::deque<Half> halves = std::exchange(halves_, {}); }

}  // namespace lockstep::device
