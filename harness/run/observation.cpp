#include "harness/run/observation.hpp"

#include <algorithm>

#include "engine/core/text.hpp"

namespace lockstep::run {

std::vector<const comm::LogEntry*> select(const Observation& observation, const CollectiveFilter& filter) {
  std::vector<const comm::LogEntry*> chosen;
  for (const comm::LogEntry& entry : observation.collectives) {
    if (entry.family == comm::Family::start_up && !filter.start_up) continue;
    if (entry.family == comm::Family::checkpoint && !filter.checkpoint) continue;
    if (entry.family == comm::Family::uncounted) continue;
    if (filter.phase && entry.phase != *filter.phase) continue;
    if (filter.dtype && entry.dtype != *filter.dtype) continue;
    if (!filter.axes.empty() &&
        std::find(filter.axes.begin(), filter.axes.end(), std::pair(entry.axis, entry.group_size)) == filter.axes.end())
      continue;
    chosen.push_back(&entry);
  }
  return chosen;
}

CollectiveCounts count_collectives(const std::vector<const comm::LogEntry*>& entries, bool bytes) {
  CollectiveCounts counts;
  for (const comm::LogEntry* entry : entries)
    counts[{std::string(name_of(entry->family)), std::string(name_of(entry->operation))}] += bytes ? entry->bytes : 1;
  return counts;
}

std::string list_collectives(const std::vector<const comm::LogEntry*>& entries, std::size_t limit) {
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, entries.size()); ++i) {
    const comm::LogEntry& entry = *entries[i];
    text += str(i ? ", " : "", name_of(entry.family), "/", name_of(entry.operation), " of ", entry.bytes, " bytes in ",
                name_of(entry.phase), entry.owner.empty() ? "" : " for ", entry.owner);
    if (entry.scenario_line > 0) text += str(" (line ", entry.scenario_line, ")");
  }
  if (entries.size() > limit) text += str(" and ", entries.size() - limit, " more");
  return text;
}

}  // namespace lockstep::run
