// A window over steps on one rank: which collectives it issued, its peak memory, how long it took. Opened and closed by
// `observe`; expect_collectives and counts() look into it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/process_group.hpp"

namespace lockstep::run {

struct Observation {
  std::vector<comm::LogEntry> collectives;
  std::int64_t peak_bytes = 0;
  double seconds = 0.0;
};

// What of a window is looked at. start_up and checkpoint only count for a check that names them.
struct CollectiveFilter {
  std::optional<comm::Phase> phase;
  std::optional<DType> dtype;
  std::vector<std::pair<std::string, int>> axes;  // name and size of the groups asked for; empty: all
  bool start_up = false;
  bool checkpoint = false;
};
std::vector<const comm::LogEntry*> select(const Observation& observation, const CollectiveFilter& filter);

// Family and operation -> number, or bytes.
using CollectiveCounts = std::map<std::pair<std::string, std::string>, std::int64_t>;
CollectiveCounts count_collectives(const std::vector<const comm::LogEntry*>& entries, bool bytes);

// "data_parallel/all_reduce of 24 bytes for net.fc1 (line 12)", at most `limit` of them, then how many more.
std::string list_collectives(const std::vector<const comm::LogEntry*>& entries, std::size_t limit);

}  // namespace lockstep::run
