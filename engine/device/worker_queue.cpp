#include "engine/device/worker_queue.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/start_thread.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device {

void WorkerQueue::issue(Body body, Pointers pointers, bool may_block) {
  Item item;
  item.body = std::move(body);
  item.pointers = std::move(pointers);
  push(std::move(item), may_block);
}

void WorkerQueue::issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access>) {
  issue(
      [start, finish = std::move(finish)](const Pointers& p) {
        start(p);
        finish(p);
      },
      std::move(pointers), true);
}

void WorkerQueue::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void WorkerQueue::issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) {
  rethrow_failure();
  auto* const worker = dynamic_cast<WorkerQueue*>(other.get());
  if (worker == nullptr) return other->await(number);  // its items run on the host alone
  if (worker->has_succeeded(number)) return;
  Item item;
  item.awaited = other;
  item.number_awaited = number;
  push(std::move(item), false);
}

void WorkerQueue::push(Item item, bool may_block) {
  std::unique_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  items_.push_back(std::move(item));
  ++issued_;
  if (may_block) wake_worker(lock);
}

void WorkerQueue::wake_worker(std::unique_lock<std::mutex>& lock) {
  worker_target_ = issued_;
  if (!worker_.joinable()) {
    activity_.add();
    try {
      worker_ = start_thread("starting the thread of a stream", [this] { run_worker(); });
    } catch (...) {
      activity_.remove();
      throw;
    }
  } else if (!running_) {
    wake_.count_awake(activity_);
    lock.unlock();  // otherwise the woken thread would block on it
    wake_.notify();
  }
}

bool WorkerQueue::run_if_idle(Call call, const void* body, const Pointers& pointers) {
  if (completed_.load(std::memory_order_acquire) != issued_) return false;
  if (error_) std::rethrow_exception(error_);
  std::exception_ptr failure;
  try {
    const OpenMemory open;
    call(body, pointers);
  } catch (...) {
    failure = std::current_exception();
  }
  ++issued_;
  if (failure) {
    std::lock_guard lock(mutex_);
    error_ = failure;
    failed_at_ = issued_;
  }
  completed_.store(issued_, std::memory_order_release);  // no thread waits for an item that was never queued
  return true;
}

void WorkerQueue::run_next(std::unique_lock<std::mutex>& lock) {
  running_ = true;
  const bool drop = error_ != nullptr;
  std::exception_ptr failure;
  {
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (!drop) {
      try {
        if (item.awaited) {
          item.awaited->await(item.number_awaited);
        } else {
          const OpenMemory open;
          item.body(item.pointers);
        }
      } catch (...) {
        failure = std::current_exception();
      }
    }
  }  // the body's owned objects are destroyed before its completion becomes visible
  lock.lock();
  running_ = false;
  const std::uint64_t number = completed_.load(std::memory_order_relaxed) + 1;
  if (failure) {
    error_ = failure;
    failed_at_ = number;
  }
  completed_.store(number, std::memory_order_release);
  if (number >= next_awaited_) {
    next_awaited_ = no_waiter;  // threads that wait for later items set it again
    progress_.count_awake(activity_);
    lock.unlock();
    progress_.notify();
    lock.lock();
  }
}

void WorkerQueue::run_worker() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (!stop_ && (running_ || completed_ >= worker_target_)) wake_.wait(lock, activity_);
    // Once awake, it also runs the items after worker_target_.
    while (!stop_ && !running_ && !items_.empty()) run_next(lock);
    if (stop_) return;
  }
}

void WorkerQueue::await_completed(std::uint64_t number, std::unique_lock<std::mutex>& lock) {
  bool ran = false;
  while (completed_ < number && !stop_) {
    if (!running_ && !items_.empty()) {
      run_next(lock);
      ran = true;
    } else {
      next_awaited_ = std::min(next_awaited_, number);
      progress_.wait(lock, activity_);
    }
  }
  if (!ran || running_ || items_.empty()) return;
  // Other threads may have waited while this one was running; they continue with the remaining items.
  if (next_awaited_ != no_waiter) {
    next_awaited_ = no_waiter;
    progress_.count_awake(activity_);
    progress_.notify();
  }
  if (completed_ < worker_target_) {
    wake_.count_awake(activity_);
    wake_.notify();
  }
}

void WorkerQueue::await(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  await_completed(number, lock);
  if (error_ && failed_at_ <= number) std::rethrow_exception(error_);
  // Only at the end of the rank. The caller must not continue as if the item had run.
  if (completed_ < number) throw Error(str("stream ", name_, " ended before it ran the awaited launch"));
}

bool WorkerQueue::has_succeeded(std::uint64_t number) {
  if (!has_completed(number)) return false;
  std::lock_guard lock(mutex_);
  return !error_;
}

void WorkerQueue::clear_failure() {
  std::unique_lock lock(mutex_);
  await_completed(issued_, lock);
  error_ = nullptr;
}

void WorkerQueue::stop() {
  std::lock_guard lock(mutex_);
  stop_ = true;
  wake_.notify();
  progress_.notify();
}

void WorkerQueue::join() {
  if (worker_.joinable()) worker_.join();
}

// Bodies may own blocks, so destroying a body may free one.
void WorkerQueue::drop_items() { const std::deque<Item> items = std::exchange(items_, {}); }

}  // namespace lockstep::device
