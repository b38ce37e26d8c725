// The queue of a CUDA stream. An item's body enqueues kernels and copies on the stream, so the order of the items is
// the order in which bodies run.
//
// Bodies run on the rank's own thread when they are issued. A body that may block (a collective, which waits for peers
// before its transport moves data) runs on the worker thread of the queue, and so do the items after it until none is
// left. A queue that waits for an item whose body has not run also waits on its worker; it never lets its stream wait
// for something that is not enqueued. Streams share the few channels of a GPU, so such a wait could stop the stream
// that it waits for. Therefore each wait between streams is for an event that has been recorded.
//
// An item has run when the stream has reached the event that was recorded after it (Mark). Events are recorded where
// something may wait: at Stream::record() and at a wait. Internal to engine/device.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/device/activity.hpp"
#include "engine/device/cuda/shared.hpp"
#include "engine/device/queue.hpp"

namespace lockstep::device::cuda {

class CudaQueue final : public Queue {
 public:
  // `name` is the stream's, for messages. `activity` outlives the queue's thread. The device is the calling thread's.
  CudaQueue(std::string name, std::shared_ptr<Shared> shared, Activity& activity);
  ~CudaQueue() override;

  Execution execution() const override { return {Space::cuda, 0, stream_}; }
  const Stamp* stamp() override { return shared_->stamp(stream_); }
  void issue(Body body, Pointers pointers, bool may_block) override;
  bool run_if_idle(Call call, const void* body, const Pointers& pointers) override;
  void issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access>) override;
  void issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) override;
  void rethrow_failure() override;
  std::uint64_t last_number() const override { return issued_; }
  void mark() override;
  void await(std::uint64_t number) override;
  void clear_failure() override;
  void stop() override;
  void join() override;
  void drop_items() override;

 private:
  struct Item {
    Body body;
    Pointers pointers;
    std::shared_ptr<CudaQueue> awaited;  // instead of a body: the stream waits for item `number_awaited` of this queue
    std::uint64_t number_awaited = 0;
    bool marks = false;  // a mark follows the item
  };

  bool is_idle() const { return enqueued_.load(std::memory_order_acquire) == issued_; }
  // Runs `enqueue` on the host as the next item. Keeps its failure.
  template <class F>
  void run_now(const F& enqueue);
  void push(Item item);
  void wake_worker();
  void run_worker();
  void run_next(std::unique_lock<std::mutex>& lock);
  void fail(std::uint64_t number, std::exception_ptr failure);  // under the lock

  // Waits until the bodies up to `number` have run. Rethrows a failure up to it.
  void await_enqueued(std::uint64_t number, std::unique_lock<std::mutex>& lock);
  // Whether issue_wait() for the item needs no worker: its body has run, and nothing has failed.
  bool has_enqueued(std::uint64_t number);
  // The stream waits for the other queue's item, whose body has run.
  void wait_for(CudaQueue& other, std::uint64_t number);
  // A mark at or after an item whose body has run; null if the item is known to have run.
  std::shared_ptr<Mark> mark_after(std::uint64_t number, const std::unique_lock<std::mutex>& lock);
  std::shared_ptr<Mark> record_mark(std::uint64_t number, const std::unique_lock<std::mutex>& lock);
  void reached(std::uint64_t number, const std::unique_lock<std::mutex>& lock);  // the stream has reached a mark

  const std::string name_;
  const std::shared_ptr<Shared> shared_;
  Calls& calls_;
  Activity& activity_;
  void* const stream_;  // a StreamHandle
  bool returns_stream_ = true;

  std::uint64_t issued_ = 0;  // the host's
  std::mutex mutex_;
  ActivityCondition wake_;      // for the worker: there are items
  ActivityCondition progress_;  // for other threads: the worker has run an item
  std::deque<Item> items_;
  std::atomic<std::uint64_t> enqueued_{0};   // stored under the lock, or by the host while it equals issued_
  std::deque<std::shared_ptr<Mark>> marks_;  // in order of their numbers; the stream has reached none for certain
  std::uint64_t reached_ = 0;                // the stream has run the items up to this one
  bool stop_ = false;
  std::exception_ptr error_;     // items after failed_at_ are dropped
  std::uint64_t failed_at_ = 0;  // where error_ is set
  std::thread worker_;
};

}  // namespace lockstep::device::cuda
