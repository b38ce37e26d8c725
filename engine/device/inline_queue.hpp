// The queue of a device that runs its work inline: items run on the host when they are issued. Only second halves wait.
// Several items in halves may wait at once if no one writes memory that another one accesses. Internal to
// engine/device; all functions are the host's.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/device/queue.hpp"

namespace lockstep::device {

class InlineQueue final : public Queue {
 public:
  void issue(Body body, Pointers pointers, bool may_block) override;
  void issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access> accesses) override;
  void issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) override { other->await(number); }
  std::uint64_t last_number() const override { return last_; }
  void await(std::uint64_t number) override;
  void clear_failure() override;
  void drop_items() override;
  void flush() override { await(last_); }
  void flush_before(std::span<const Access> accesses) override;

 private:
  struct Range {  // of memory
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    bool is_written = false;
  };
  static std::vector<Range> ranges_of(std::span<const Access> accesses);

  // Numbers count second halves: everything else has run when it was issued.
  struct Half {
    std::uint64_t number = 0;
    Body finish;
    Pointers pointers;
    std::vector<Range> ranges;
  };
  std::deque<Half> halves_;
  std::uint64_t last_ = 0;
};

}  // namespace lockstep::device
