// The queue of a device that runs beside the host: a list of items and one worker thread. The first thread that waits
// for an item runs it, one item at a time. The worker is woken for items that may block.
// Internal to engine/device.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/device/activity.hpp"
#include "engine/device/queue.hpp"

namespace lockstep::device {

class WorkerQueue final : public Queue {
 public:
  // `name` is the stream's, for messages. `activity` outlives the queue's threads.
  WorkerQueue(std::string name, Activity& activity) : name_(std::move(name)), activity_(activity) {}

  void issue(Body body, Pointers pointers, bool may_block) override;
  bool run_if_idle(Call call, const void* body, const Pointers& pointers) override;
  void issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access>) override;
  void issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) override;
  void rethrow_failure() override;
  std::uint64_t last_number() const override { return issued_; }
  void await(std::uint64_t number) override;
  void clear_failure() override;
  void stop() override;
  void join() override;
  void drop_items() override;

 private:
  struct Item {
    Body body;
    Pointers pointers;
    std::shared_ptr<Queue> awaited;  // instead of a body: wait for item `number_awaited` of this queue
    std::uint64_t number_awaited = 0;
  };

  void push(Item item, bool may_block);
  bool has_completed(std::uint64_t number) const { return completed_.load(std::memory_order_acquire) >= number; }
  bool has_succeeded(std::uint64_t number);  // completed, and no item has failed
  void run_worker();
  // Makes the worker run the items so far. May release the lock.
  void wake_worker(std::unique_lock<std::mutex>& lock);
  // Runs the front item while no other thread runs one.
  void run_next(std::unique_lock<std::mutex>& lock);
  // Returns when item `number` has completed or the queue ends.
  void await_completed(std::uint64_t number, std::unique_lock<std::mutex>& lock);

  static constexpr std::uint64_t no_waiter = ~std::uint64_t{0};
  const std::string name_;
  Activity& activity_;
  std::mutex mutex_;
  ActivityCondition wake_;      // for the worker: worker_target_ has increased
  ActivityCondition progress_;  // for other threads: an item has run
  std::deque<Item> items_;
  std::uint64_t issued_ = 0;
  std::atomic<std::uint64_t> completed_{0};  // stored under the lock, or by the host while it equals issued_
  std::uint64_t next_awaited_ = no_waiter;   // the lowest item that a thread waits for; no thread is woken earlier
  std::uint64_t worker_target_ = 0;          // the worker runs the items up to this one, even if no thread waits
  bool running_ = false;                     // a thread runs the item after completed_
  bool stop_ = false;
  // Items after failed_at_ are dropped. Both are written under the lock, before completed_, by the running thread.
  std::exception_ptr error_;
  std::uint64_t failed_at_ = 0;  // where error_ is set
  std::thread worker_;
};

}  // namespace lockstep::device
