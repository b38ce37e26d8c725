#include "engine/device/inline_queue.hpp"

#include <algorithm>

#include "engine/device/runtime.hpp"

namespace lockstep::device {

void InlineQueue::issue(Body body, Pointers pointers, bool) {
  flush();
  body(pointers);
}

std::vector<InlineQueue::Range> InlineQueue::ranges_of(std::span<const Access> accesses) {
  std::vector<Range> ranges;
  for (const Access& access : accesses) {
    if (access.bytes == 0) continue;
    const std::byte* const data = PointerAccess::data(*access.memory);
    ranges.push_back({data + access.offset, access.bytes, access.mode != Mode::read});
  }
  return ranges;
}

void InlineQueue::flush_before(std::span<const Access> accesses) {
  if (halves_.empty()) return;
  const std::vector<Range> next = ranges_of(accesses);
  const auto conflicts = [](const Range& a, const Range& b) {
    return (a.is_written || b.is_written) && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
  };
  const auto last = std::find_if(halves_.rbegin(), halves_.rend(), [&](const Half& half) {
    return std::any_of(half.ranges.begin(), half.ranges.end(), [&](const Range& range) {
      return std::any_of(next.begin(), next.end(), [&](const Range& own) { return conflicts(range, own); });
    });
  });
  if (last != halves_.rend()) await(last->number);
}

void InlineQueue::issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access> accesses) {
  start(pointers);
  halves_.push_back({++last_, std::move(finish), std::move(pointers), ranges_of(accesses)});
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
