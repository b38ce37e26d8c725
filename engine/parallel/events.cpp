#include "engine/parallel/events.hpp"

#include <utility>

#include "engine/core/rank_context.hpp"

namespace lockstep::parallel {

namespace {
struct EventLog {
  explicit EventLog(RankContext&) {}
  std::vector<ParallelEvent> entries;
};
EventLog& event_log() { return RankContext::current().service<EventLog>(); }
}  // namespace

std::string_view name_of(EventKind kind) {
  static constexpr std::string_view names[] = {"unshard",      "reshard",      "reduce",        "pre_forward",
                                               "post_forward", "pre_backward", "post_backward", "recompute",
                                               "wait_event",   "wait_stream"};
  static_assert(std::size(names) == num_event_kinds);
  return names[static_cast<int>(kind)];
}

void note_event(EventKind kind, std::string owner, std::weak_ptr<nn::Module> module) {
  EventLog& log = event_log();
  if (log.entries.size() < most_events) log.entries.push_back({kind, std::move(owner), std::move(module)});
}

const std::vector<ParallelEvent>& events() { return event_log().entries; }

}  // namespace lockstep::parallel
