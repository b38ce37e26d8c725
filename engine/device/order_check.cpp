#include "engine/device/order_check.hpp"

#include <algorithm>
#include <chrono>

#include "engine/core/error.hpp"
#include "engine/device/runtime.hpp"

namespace lockstep::device {

namespace {
constexpr std::size_t most_violations = 20;
constexpr std::size_t prune_every = 128;  // parts

bool join(Clocks& into, const Clocks& what) {
  std::uint32_t news = 0;
  for (std::size_t i = 0; i < into.size(); ++i) {
    const std::uint32_t later = std::max(into[i], what[i]);
    news |= later ^ into[i];
    into[i] = later;
  }
  return news != 0;
}
}  // namespace

void OrderCheck::set_on(bool on) {
  if (on && !on_) {
    // What ran unwatched counts as ordered.
    ++generation_;
  }
  on_ = on;
}

void OrderCheck::add_stream(StreamClock& clock, std::string name) {
  if (names_.size() == static_cast<std::size_t>(max_streams)) {
    throw Error(str("stream ", name, ": a rank has at most ", max_streams, " streams over all its devices"),
                "use fewer devices or roles in one rank");
  }
  clock.id = static_cast<int>(names_.size());
  names_.push_back(std::move(name));
  streams_.push_back(&clock);
}

void OrderCheck::learn_from_host(StreamClock& clock) {
  if (clock.host_version == host_version_) return;
  clock.host_version = host_version_;
  stream_learns(clock, host_);
}

void OrderCheck::stream_learns(StreamClock& clock, const Clocks& what) {
  // A new point: memory that goes back from here on is ordered after what was learned, before it was not.
  if (join(clock.known, what)) ++clock.known[static_cast<std::size_t>(clock.id)];
}

void OrderCheck::host_learns(const Clocks& what) {
  if (join(host_, what)) ++host_version_;
}

void OrderCheck::taken(StreamClock& home, OrderShadow& shadow, std::size_t bytes) {
  learn_from_host(home);
  shadow.generation = generation_;
  shadow.clear();
  AccessRecord record;
  record.end = bytes;
  record.count = home.known[static_cast<std::size_t>(home.id)];
  record.stream = static_cast<std::uint8_t>(home.id);
  record.writes = record.taking = true;
  record.scenario_line = context_->scenario_line;
  record.iteration = context_->iteration;
  shadow.whole.push_back(record);
}

void OrderCheck::freed(StreamClock& home, OrderShadow& shadow, const Memory& memory) {
  if (shadow.generation != generation_) return;
  learn_from_host(home);
  const auto check = [&](const AccessRecord& earlier) {
    ++num_checked_;
    if (earlier.count <= home.known[earlier.stream]) return;
    AccessRecord later;
    later.end = memory.bytes();
    later.stream = static_cast<std::uint8_t>(home.id);
    later.writes = true;
    later.name = "freeing";
    later.scenario_line = context_->scenario_line;
    later.iteration = context_->iteration;
    report(earlier, later, true, memory);
  };
  std::for_each(shadow.whole.begin(), shadow.whole.end(), check);
  std::for_each(shadow.parts.begin(), shadow.parts.end(), check);
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

void OrderCheck::access(StreamClock& clock, const char* name, OrderShadow& shadow, const Access& access) {
  if (shadow.generation != generation_) {
    shadow.clear();
    shadow.generation = generation_;
  }
  const Memory& memory = *access.memory;
  AccessRecord now;
  now.begin = access.offset;
  now.end = access.offset + access.bytes;
  now.count = clock.known[static_cast<std::size_t>(clock.id)];
  now.stream = static_cast<std::uint8_t>(clock.id);
  now.writes = access.mode != Mode::read;
  now.name = name;
  now.scenario_line = context_->scenario_line;
  now.iteration = context_->iteration;
  // Whoever comes after this access comes after what it covers: a write covers all, a read its own stream's reads.
  const auto supersedes = [&now](const AccessRecord& earlier) {
    return now.begin <= earlier.begin && now.end >= earlier.end &&
           (now.writes || (!earlier.writes && earlier.stream == now.stream));
  };

  // Against accesses to the whole block.
  const bool is_whole = access.offset == 0 && access.bytes == memory.bytes();
  bool placed = false;
  for (std::size_t i = 0; i < shadow.whole.size();) {
    AccessRecord& earlier = shadow.whole[i];
    compare(clock, earlier, now, memory);
    if (!is_whole || !supersedes(earlier)) {
      ++i;
    } else if (!placed) {
      earlier = now;
      placed = true;
      ++i;
    } else {
      earlier = shadow.whole.back();
      shadow.whole.pop_back();
    }
  }
  if (is_whole && !placed) shadow.whole.push_back(now);

  // Against the parts that may reach into this one.
  std::vector<AccessRecord>& parts = shadow.parts;
  const auto starts_before = [](const AccessRecord& record, std::size_t place) { return record.begin < place; };
  const std::size_t earliest = now.begin - std::min(now.begin, shadow.longest_part);
  const auto first = std::lower_bound(parts.begin(), parts.end(), earliest, starts_before);
  auto kept = first, next = first;
  for (; next != parts.end() && next->begin < now.end; ++next) {
    if (next->end > now.begin) {
      compare(clock, *next, now, memory);
      if (supersedes(*next)) continue;
    }
    if (kept != next) *kept = *next;
    ++kept;
  }
  if (is_whole) {
    parts.erase(kept, next);
    if (parts.empty()) shadow.longest_part = 0;
    return;
  }
  shadow.longest_part = std::max(shadow.longest_part, access.bytes);
  const auto place = std::lower_bound(first, kept, now.begin, starts_before);
  if (kept != next) {
    std::move_backward(place, kept, kept + 1);
    *place = now;
    parts.erase(kept + 1, next);
    return;
  }
  parts.insert(place, now);
  if (parts.size() % prune_every == 0) prune(shadow);
}

void OrderCheck::prune(OrderShadow& shadow) const {
  // What every stream and the host know has run conflicts with nothing to come.
  Clocks common = host_;
  for (const StreamClock* stream : streams_) {
    for (std::size_t i = 0; i < common.size(); ++i) common[i] = std::min(common[i], stream->known[i]);
  }
  std::erase_if(shadow.parts, [&](const AccessRecord& record) { return record.count <= common[record.stream]; });
}

std::string OrderCheck::describe(const AccessRecord& record, bool freeing) const {
  std::string out = record.taking ? str("taking the block from the pool of ", names_[record.stream])
                    : freeing     ? str("freeing it, which ", names_[record.stream], " orders,")
                                  : str("`", static_cast<const char*>(record.name), "` on ", names_[record.stream],
                                    record.writes ? " writing" : " reading", " bytes ", record.begin, "..", record.end);
  if (record.scenario_line > 0) out += str(" (line ", record.scenario_line, ")");
  if (record.iteration >= 0) out += str(" (iteration ", record.iteration, ")");
  return out;
}

void OrderCheck::report(const AccessRecord& earlier, const AccessRecord& later, bool freeing, const Memory& memory) {
  const std::string what = memory.label.empty() ? str("a block of ", memory.bytes(), " bytes (",
                                                      name_of(memory.purpose()), ") on ", to_text(memory.device()))
                                                : str(memory.label, " on ", to_text(memory.device()));
  // The same two launches on the same block say nothing new the second time.
  const std::string key = str(what, "|", static_cast<const char*>(earlier.name), "|", static_cast<int>(earlier.stream),
                              "|", earlier.writes, earlier.taking, "|", static_cast<const char*>(later.name), "|",
                              static_cast<int>(later.stream), "|", later.writes, freeing);
  if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) return;
  if (violations_.size() == most_violations) return;
  seen_.push_back(key);
  OrderViolation violation;
  violation.message = str("nothing orders two accesses to ", what, ": ", describe(earlier, false), " and then ",
                          describe(later, freeing), "; ", names_[later.stream], " must wait for an event of ",
                          names_[earlier.stream], " recorded after the first, or the host for either");
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
