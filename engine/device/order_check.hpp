// How the order check works (internal).
//
// Every stream has a vector clock: how far of each stream is known to run before what it is given next. Its own entry
// counts up at each launch and whenever it learns something, so that (stream, count) names a point. The host's clock
// holds what it learned by waiting; a launch joins it, an event carries a copy, Stream::wait joins that.
//
// Each block remembers the accesses that are not yet covered by later ones. An access (s, n) comes before a launch
// whose stream's clock has n or more at s. Taking a block counts as a write of its home stream at that point, freeing
// it as another: so memory that changes hands is ordered by its home stream, whether or not a block really was reused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {

inline constexpr int max_streams = 16;  // a rank's, over all its devices
using Clocks = std::array<std::uint32_t, max_streams>;

struct StreamClock {
  int id = 0;
  Clocks known{};
  std::uint64_t host_version = 0;  // of the host's knowledge that was joined last
};

struct AccessRecord {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::uint32_t count = 0;
  std::uint8_t stream = 0;
  bool writes = false;
  bool taking = false;  // the block was taken here; no launch
  const char* name = "";
  int scenario_line = 0;
  int iteration = -1;
};

// Accesses to the whole block apart from those to parts of it: a flat buffer has many parts, each looked up by place.
struct OrderShadow {
  std::vector<AccessRecord> whole;
  std::vector<AccessRecord> parts;  // in order of their begin
  std::size_t longest_part = 0;
  std::uint64_t generation = 0;

  void clear() {
    whole.clear();
    parts.clear();
    longest_part = 0;
  }
};

class OrderCheck {
 public:
  explicit OrderCheck(RankContext& context) : context_(&context) {}

  bool on() const { return on_; }
  void set_on(bool on);
  void add_stream(StreamClock& clock, std::string name);

  // A block was taken from, and goes back to, the pool of `home`.
  void taken(StreamClock& home, OrderShadow& shadow, std::size_t bytes);
  void freed(StreamClock& home, OrderShadow& shadow, const Memory& memory);
  // A launch: advances the stream's clock once, then one call for each access.
  void begin_launch(StreamClock& clock);
  void access(StreamClock& clock, const char* name, OrderShadow& shadow, const Access& access);

  void stream_learns(StreamClock& clock, const Clocks& what);
  void host_learns(const Clocks& what);
  void learn_from_host(StreamClock& clock);

  const std::vector<OrderViolation>& violations() const { return violations_; }
  std::int64_t num_checked() const { return num_checked_; }

 private:
  // Whether `now` conflicts with `earlier` unordered; reports it.
  void compare(const StreamClock& clock, const AccessRecord& earlier, const AccessRecord& now, const Memory& memory);
  void prune(OrderShadow& shadow) const;
  void report(const AccessRecord& earlier, const AccessRecord& later, bool freeing, const Memory& memory);
  std::string describe(const AccessRecord& record, bool freeing) const;

  RankContext* context_;
  bool on_ = true;
  std::uint64_t generation_ = 1;  // shadows of an earlier one know nothing
  Clocks host_{};
  std::uint64_t host_version_ = 0;
  std::vector<StreamClock*> streams_;
  std::vector<std::string> names_;
  std::vector<OrderViolation> violations_;
  std::vector<std::string> seen_;
  std::int64_t num_checked_ = 0;
};

}  // namespace lockstep::device
