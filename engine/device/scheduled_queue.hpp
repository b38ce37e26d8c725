// The queue of a device that runs beside the host, under a schedule (core/schedule.hpp): every item waits until the
// scheduler picks the stream, also where the stream is idle or the host waits. Internal to engine/device.
//
// Whoever has the baton runs alone, so the members need no lock.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "engine/core/schedule.hpp"
#include "engine/device/activity.hpp"
#include "engine/device/queue.hpp"

namespace lockstep::device {

class ScheduledQueue final : public Queue {
 public:
  // `name` is the stream's. The calling thread is an actor, a thread of `rank`. `activity` outlives the queue's thread.
  ScheduledQueue(std::string name, int rank, Activity& activity)
      : name_(std::move(name)), rank_(rank), activity_(activity) {}

  void issue(Body body, Pointers pointers, bool may_block) override;
  void issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access>) override;
  void issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) override;
  void rethrow_failure() override;
  std::uint64_t last_number() const override { return issued_; }
  void await(std::uint64_t number) override;
  void clear_failure() override;
  void stop() override { stop_ = true; }
  void join() override;
  void drop_items() override;

 private:
  struct Item {
    Body body;
    Body finish;  // the second half; may be empty
    Pointers pointers;
    std::shared_ptr<Queue> awaited;  // instead of a body: wait for item `number_awaited` of this queue
    std::uint64_t number_awaited = 0;
  };

  void push(Item item);
  void start_thread();
  void run_thread();
  void run_next();
  void run(Item& item) const;
  void await_completed(std::uint64_t number);

  const std::string name_;
  const int rank_;
  Activity& activity_;
  std::deque<Item> items_;
  std::uint64_t issued_ = 0;
  std::uint64_t completed_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;     // items after failed_at_ are dropped
  std::uint64_t failed_at_ = 0;  // where error_ is set
  schedule::Actor* actor_ = nullptr;
  std::thread thread_;
};

}  // namespace lockstep::device
