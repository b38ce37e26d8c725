// The implementation of the order check (internal to engine/device).
//
// Every stream has a vector clock. Entry s of it is the point up to which stream s has run before this stream's next
// launch. A stream increases its own entry at each launch and whenever it learns of another stream's progress, so
// (stream, count) names a point. The host has a clock, too: it learns by waiting. A launch joins the host's clock into
// its stream's clock. An event carries a copy of its stream's clock, and Stream::wait joins that copy.
//
// Each block remembers the accesses that no later access supersedes. An access (s, n) is ordered before a launch if the
// clock of the launch's stream has at least n at s. Allocating a block counts as a write on its allocation stream, and
// freeing it as another one. The reuse of memory is therefore checked even in runs where no block is reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {

struct StreamClock {
  int id = 0;
  Clocks known{};
  std::uint64_t host_version = 0;  // version of the host's clock that was joined last
};

// An access to the bytes [begin, end) of a block, at point (stream, count).
struct AccessRecord {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::uint32_t count = 0;
  std::uint8_t stream = 0;
  bool writes = false;
  bool is_allocation = false;  // the allocation of the block instead of a launch
  const char* name = "";
  int scenario_line = 0;
  int iteration = -1;
};

// The accesses that a block remembers. Accesses to all its bytes are separate from those to subranges, because a flat
// buffer has many subranges, which are found by binary search.
struct OrderShadow {
  std::vector<AccessRecord> full_block;
  std::vector<AccessRecord> subranges;  // sorted by `begin`
  std::size_t longest_subrange = 0;     // bytes
  std::uint64_t generation = 0;

  void clear() {
    full_block.clear();
    subranges.clear();
    longest_subrange = 0;
  }
};

class OrderCheck {
 public:
  explicit OrderCheck(RankContext& context) : context_(&context) {}
  OrderCheck(const OrderCheck&) = delete;
  OrderCheck& operator=(const OrderCheck&) = delete;

  bool on() const { return on_; }
  void set_on(bool on);
  // Throws Error for the 17th stream of a rank.
  void add_stream(StreamClock& clock, std::string name);

  // A block was allocated from, or returned to, the pool of the stream with this clock.
  void allocated(StreamClock& clock, OrderShadow& shadow, std::size_t bytes);
  void freed(StreamClock& clock, OrderShadow& shadow, const Memory& memory);
  // A launch calls begin_launch once, which advances the stream's clock, and then access() for each access.
  void begin_launch(StreamClock& clock);
  void access(StreamClock& clock, const char* name, OrderShadow& shadow, const Access& access);
  // The last launch of the stream was refused, so this block is not accessed by it. Accesses that it has superseded
  // stay dropped.
  static void forget(const StreamClock& clock, OrderShadow& shadow);

  // The stream (the host) waited until everything in `known` had run.
  void stream_learns(StreamClock& clock, const Clocks& known);
  void host_learns(const Clocks& known);
  void learn_from_host(StreamClock& clock);

  const std::vector<OrderViolation>& violations() const { return violations_; }
  std::int64_t num_checked() const { return num_checked_; }

 private:
  // A record at the current point of the stream, without range and mode.
  AccessRecord record_at(const StreamClock& clock, const char* name) const;
  // Compares `now` with the remembered accesses, drops those that it supersedes, and remembers it.
  void compare_full_block(const StreamClock& clock, OrderShadow& shadow, const AccessRecord& now, bool covers_block,
                          const Memory& memory);
  void compare_subranges(const StreamClock& clock, OrderShadow& shadow, const AccessRecord& now, bool covers_block,
                         const Memory& memory);
  // Reports the two accesses if they conflict and nothing orders them.
  void compare(const StreamClock& clock, const AccessRecord& earlier, const AccessRecord& now, const Memory& memory);
  void prune(OrderShadow& shadow) const;
  void report(const AccessRecord& earlier, const AccessRecord& later, bool freeing, const Memory& memory);
  std::string describe(const AccessRecord& record, bool freeing) const;

  RankContext* context_;
  bool on_ = true;
  std::uint64_t generation_ = 1;  // shadows of an earlier generation are discarded
  Clocks host_{};
  std::uint64_t host_version_ = 0;
  std::vector<std::string> names_;
  std::vector<OrderViolation> violations_;
  std::vector<std::string> seen_;  // keys of the reported pairs
  std::int64_t num_checked_ = 0;
};

}  // namespace lockstep::device
