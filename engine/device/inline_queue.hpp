// The queue of a device that runs its work inline: items run on the host when they are issued. Only second halves wait.
// Internal to engine/device; all functions are the host's.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "engine/device/queue.hpp"

namespace lockstep::device {

class InlineQueue final : public Queue {
 public:
  void issue(Body body, Pointers pointers, bool may_block) override;
  void issue_in_halves(const Body& start, Body finish, Pointers pointers) override;
  void issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) override { other->await(number); }
  std::uint64_t last_number() const override { return last_; }
  void await(std::uint64_t number) override;
  void clear_failure() override;
  void drop_items() override;
  void flush() override { await(last_); }

 private:
  // Numbers count second halves: everything else has run when it was issued.
  struct Half {
    std::uint64_t number = 0;
    Body finish;
    Pointers pointers;
  };
  std::deque<Half> halves_;
  std::uint64_t last_ = 0;
};

}  // namespace lockstep::device
