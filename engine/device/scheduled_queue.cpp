#include "engine/device/scheduled_queue.hpp"

#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/start_thread.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device {

namespace {

// Waits of one actor, during which its thread is not active.
template <class F>
void wait_inactive(Activity& activity, const char* what, const F& condition) {
  schedule::Actor* const me = schedule::self();
  LOCKSTEP_CHECK(me != nullptr, "a thread outside the schedule waits for a stream");
  if (condition()) return;
  activity.remove();
  try {
    me->wait(what, condition);
  } catch (...) {
    activity.add();
    throw;
  }
  activity.add();
}

}  // namespace

void ScheduledQueue::issue(Body body, Pointers pointers, bool) {
  Item item;
  item.body = std::move(body);
  item.pointers = std::move(pointers);
  push(std::move(item));
}

void ScheduledQueue::issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access>) {
  Item item;
  item.body = start;
  item.finish = std::move(finish);
  item.pointers = std::move(pointers);
  push(std::move(item));
}

void ScheduledQueue::rethrow_failure() {
  if (error_) std::rethrow_exception(error_);
}

void ScheduledQueue::issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) {
  rethrow_failure();
  auto* const queue = dynamic_cast<ScheduledQueue*>(other.get());
  if (queue == nullptr) return other->await(number);  // its items run on the host alone
  if (number == 0) return;
  Item item;
  item.awaited = other;
  item.number_awaited = number;
  push(std::move(item));
}

void ScheduledQueue::push(Item item) {
  if (error_) std::rethrow_exception(error_);
  items_.push_back(std::move(item));
  ++issued_;
  if (actor_ == nullptr) start_thread();
  schedule::point();
}

void ScheduledQueue::start_thread() {
  schedule::Actor* const host = schedule::self();
  LOCKSTEP_CHECK(host != nullptr, "a thread outside the schedule issues to a stream");
  schedule::Actor& added = host->scheduler().add(rank_, name_);
  activity_.add();
  try {
    thread_ = lockstep::start_thread("starting the thread of a stream", [this, &added] {
      added.begin();
      run_thread();
      activity_.remove();
      added.end();
    });
  } catch (...) {
    activity_.remove();
    added.retire();
    throw;
  }
  actor_ = &added;
}

void ScheduledQueue::run_thread() {
  while (true) {
    wait_inactive(activity_, "a launch", [this] { return stop_ || !items_.empty(); });
    if (stop_) return;
    run_next();
    if (!items_.empty()) schedule::point();
  }
}

void ScheduledQueue::run(Item& item) const {
  if (item.awaited) return item.awaited->await(item.number_awaited);
  {
    const OpenMemory open;
    item.body(item.pointers);
  }
  if (!item.finish) return;
  schedule::point();
  const OpenMemory open;
  item.finish(item.pointers);
}

void ScheduledQueue::run_next() {
  std::exception_ptr failure;
  {
    Item item = std::move(items_.front());
    items_.pop_front();
    if (!error_) {
      try {
        run(item);
      } catch (...) {
        failure = std::current_exception();
      }
    }
  }  // the body's owned objects are destroyed before its completion becomes visible
  ++completed_;
  if (failure) {
    error_ = failure;
    failed_at_ = completed_;
  }
}

void ScheduledQueue::await_completed(std::uint64_t number) {
  wait_inactive(activity_, "the launches of a stream", [this, number] { return completed_ >= number || stop_; });
}

void ScheduledQueue::await(std::uint64_t number) {
  await_completed(number);
  if (error_ && failed_at_ <= number) std::rethrow_exception(error_);
  // Only at the end of the rank. The caller must not continue as if the item had run.
  if (completed_ < number) throw Error(str("stream ", name_, " ended before it ran the awaited launch"));
}

void ScheduledQueue::clear_failure() {
  await_completed(issued_);
  error_ = nullptr;
}

void ScheduledQueue::join() {
  if (!thread_.joinable()) return;
  wait_inactive(activity_, "the end of a stream", [this] { return actor_->has_ended(); });
  thread_.join();
}

// Bodies may own blocks, so destroying a body may free one.
void ScheduledQueue::drop_items() { const std::deque<Item> items = std::exchange(items_, {}); }

}  // namespace lockstep::device
