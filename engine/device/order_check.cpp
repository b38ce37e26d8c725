#include "engine/device/order_check.hpp"

#include <algorithm>
#include <chrono>

#include "engine/core/error.hpp"
#include "engine/device/runtime.hpp"

namespace lockstep::device {

namespace {

constexpr std::size_t max_violations = 20;
constexpr std::size_t prune_every = 128;  // subranges

// Raises `clocks` to at least `other`. Returns whether that changed anything.
bool join(Clocks& clocks, const Clocks& other) {
  std::uint32_t changed = 0;
  for (std::size_t i = 0; i < clocks.size(); ++i) {
    const std::uint32_t later = std::max(clocks[i], other[i]);
    changed |= later ^ clocks[i];
    clocks[i] = later;
  }
  return changed != 0;
}

// Whether `now` makes `earlier` redundant: an access ordered after `now` is then also ordered after `earlier`. A write
// replaces all accesses inside its range, a read replaces the reads of its own stream.
bool supersedes(const AccessRecord& now, const AccessRecord& earlier) {
  return now.begin <= earlier.begin && now.end >= earlier.end &&
         (now.writes || (!earlier.writes && earlier.stream == now.stream));
}

bool starts_before(const AccessRecord& record, std::size_t offset) { return record.begin < offset; }

}  // namespace

void OrderCheck::set_on(bool on) {
  if (on && !on_) ++generation_;  // accesses made while the check was off count as ordered
  on_ = on;
}

void OrderCheck::add_stream(StreamClock& clock, std::string name) {
  if (names_.size() == static_cast<std::size_t>(max_streams)) {
    throw Error(str("stream ", name, ": a rank has at most ", max_streams, " streams over all its devices"),
                "use fewer devices or roles in one rank");
  }
  clock.id = static_cast<int>(names_.size());
  names_.push_back(std::move(name));
}

void OrderCheck::learn_from_host(StreamClock& clock) {
  if (clock.host_version == host_version_) return;
  clock.host_version = host_version_;
  stream_learns(clock, host_);
}

void OrderCheck::stream_learns(StreamClock& clock, const Clocks& known) {
  // Starts a new point: blocks freed from here on are ordered after `known`, blocks freed before are not.
  if (join(clock.known, known)) ++clock.known[static_cast<std::size_t>(clock.id)];
}

void OrderCheck::host_learns(const Clocks& known) {
  if (join(host_, known)) ++host_version_;
}

AccessRecord OrderCheck::record_at(const StreamClock& clock, const char* name) const {
  AccessRecord record;
  record.count = clock.known[static_cast<std::size_t>(clock.id)];
  record.stream = static_cast<std::uint8_t>(clock.id);
  record.name = name;
  record.scenario_line = context_->scenario_line;
  record.iteration = context_->iteration;
  return record;
}

void OrderCheck::allocated(StreamClock& clock, OrderShadow& shadow, std::size_t bytes) {
  learn_from_host(clock);
  shadow.generation = generation_;
  shadow.clear();
  AccessRecord record = record_at(clock, "");
  record.end = bytes;
  record.writes = record.is_allocation = true;
  shadow.full_block.push_back(record);
}

void OrderCheck::freed(StreamClock& clock, OrderShadow& shadow, const Memory& memory) {
  if (shadow.generation != generation_) return;
  learn_from_host(clock);
  const auto check = [&](const AccessRecord& earlier) {
    ++num_checked_;
    if (earlier.count <= clock.known[earlier.stream]) return;
    AccessRecord later = record_at(clock, "freeing");
    later.end = memory.bytes();
    later.writes = true;
    report(earlier, later, true, memory);
  };
  std::for_each(shadow.full_block.begin(), shadow.full_block.end(), check);
  std::for_each(shadow.subranges.begin(), shadow.subranges.end(), check);
}

void OrderCheck::begin_launch(StreamClock& clock) {
  learn_from_host(clock);
  ++clock.known[static_cast<std::size_t>(clock.id)];
}

void OrderCheck::compare(const StreamClock& clock, const AccessRecord& earlier, const AccessRecord& now,
                         const Memory& memory) {
  if (!now.writes && !earlier.writes) return;
  ++num_checked_;
  if (earlier.stream != now.stream && earlier.count > clock.known[earlier.stream]) [[unlikely]] {
    report(earlier, now, false, memory);
  }
}

// Inline, because every access of a launch runs both.
inline void OrderCheck::compare_full_block(const StreamClock& clock, OrderShadow& shadow, const AccessRecord& now,
                                           bool covers_block, const Memory& memory) {
  bool stored = false;
  for (std::size_t i = 0; i < shadow.full_block.size();) {
    AccessRecord& earlier = shadow.full_block[i];
    compare(clock, earlier, now, memory);
    if (!covers_block || !supersedes(now, earlier)) {
      ++i;
    } else if (!stored) {
      earlier = now;
      stored = true;
      ++i;
    } else {
      earlier = shadow.full_block.back();
      shadow.full_block.pop_back();
    }
  }
  if (covers_block && !stored) shadow.full_block.push_back(now);
}

inline void OrderCheck::compare_subranges(const StreamClock& clock, OrderShadow& shadow, const AccessRecord& now,
                                          bool covers_block, const Memory& memory) {
  // Only subranges that begin at most `longest_subrange` bytes before this one can overlap it.
  std::vector<AccessRecord>& subranges = shadow.subranges;
  const std::size_t earliest = now.begin - std::min(now.begin, shadow.longest_subrange);
  const auto first = std::lower_bound(subranges.begin(), subranges.end(), earliest, starts_before);
  auto kept = first, next = first;
  for (; next != subranges.end() && next->begin < now.end; ++next) {
    if (next->end > now.begin) {
      compare(clock, *next, now, memory);
      if (supersedes(now, *next)) continue;
    }
    if (kept != next) *kept = *next;
    ++kept;
  }
  if (covers_block) {
    subranges.erase(kept, next);
    if (subranges.empty()) shadow.longest_subrange = 0;
    return;
  }
  shadow.longest_subrange = std::max(shadow.longest_subrange, now.end - now.begin);
  const auto position = std::lower_bound(first, kept, now.begin, starts_before);
  if (kept != next) {
    std::move_backward(position, kept, kept + 1);
    *position = now;
    subranges.erase(kept + 1, next);
    return;
  }
  subranges.insert(position, now);
  if (subranges.size() % prune_every == 0) prune(shadow);
}

void OrderCheck::access(StreamClock& clock, const char* name, OrderShadow& shadow, const Access& access) {
  if (shadow.generation != generation_) {
    shadow.clear();
    shadow.generation = generation_;
  }
  const Memory& memory = *access.memory;
  AccessRecord now = record_at(clock, name);
  now.begin = access.offset;
  now.end = access.offset + access.bytes;
  now.writes = access.mode != Mode::read;
  const bool covers_block = access.offset == 0 && access.bytes == memory.bytes();
  compare_full_block(clock, shadow, now, covers_block, memory);
  compare_subranges(clock, shadow, now, covers_block, memory);
}

void OrderCheck::forget(const StreamClock& clock, OrderShadow& shadow) {
  const auto is_of_launch = [&](const AccessRecord& record) {
    return record.stream == clock.id && record.count == clock.known[static_cast<std::size_t>(clock.id)];
  };
  std::erase_if(shadow.full_block, is_of_launch);
  std::erase_if(shadow.subranges, is_of_launch);
}

void OrderCheck::prune(OrderShadow& shadow) const {
  // Every later access joins the host's clock first, so it comes after all that the host has waited for.
  std::erase_if(shadow.subranges, [&](const AccessRecord& record) { return record.count <= host_[record.stream]; });
}

std::string OrderCheck::describe(const AccessRecord& record, bool freeing) const {
  std::string out = record.is_allocation ? str("allocating the block from the pool of ", names_[record.stream])
                    : freeing            ? str("freeing it on ", names_[record.stream])
                              : str("`", static_cast<const char*>(record.name), "` on ", names_[record.stream],
                                    record.writes ? " writing" : " reading", " bytes ", record.begin, "..", record.end);
  if (record.scenario_line > 0) out += str(" (line ", record.scenario_line, ")");
  if (record.iteration >= 0) out += str(" (iteration ", record.iteration, ")");
  return out;
}

void OrderCheck::report(const AccessRecord& earlier, const AccessRecord& later, bool freeing, const Memory& memory) {
  const std::string block =
      str(memory.label.empty() ? "a block" : "memory of " + memory.label, " (", name_of(memory.purpose()), ", ",
          memory.bytes(), " bytes) on ", to_text(memory.device()));
  // The same two launches on the same block are reported once.
  const std::string key = str(block, "|", static_cast<const char*>(earlier.name), "|", static_cast<int>(earlier.stream),
                              "|", earlier.writes, earlier.is_allocation, "|", static_cast<const char*>(later.name),
                              "|", static_cast<int>(later.stream), "|", later.writes, freeing);
  if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) return;
  if (violations_.size() == max_violations) return;
  seen_.push_back(key);
  OrderViolation violation;
  violation.message = str("nothing orders two accesses to ", block, ": ", describe(earlier, false), " and then ",
                          describe(later, freeing), "; ", names_[later.stream], " must wait for an event of ",
                          names_[earlier.stream], " recorded after the first access, or the host for either stream");
  if (!context_->place.empty()) violation.message += str(" [", context_->place, "]");
  violation.scenario_line = context_->scenario_line;
  violation.iteration = context_->iteration;
  violation.time_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  violations_.push_back(std::move(violation));
}

void set_order_check(bool on) { Runtime::current().order().set_on(on); }
bool order_check_on() { return Runtime::current().order().on(); }
const std::vector<OrderViolation>& order_violations() { return Runtime::current().order().violations(); }
std::int64_t num_order_checks() { return Runtime::current().order().num_checked(); }
void set_poison(bool on) { Runtime::current().set_poison(on); }

}  // namespace lockstep::device
