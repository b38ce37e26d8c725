// A window over steps on one rank: which collectives it issued, what the parallel APIs did, its peak memory, how long
// it took. Opened and closed by `observe`; expect_collectives, expect_events and counts() look into it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/events.hpp"

namespace lockstep::run {

// Family and operation -> number, or bytes.
using CollectiveCounts = std::map<std::pair<std::string, std::string>, std::int64_t>;

// A window of a dry run.
struct PlannedWindow {
  CollectiveCounts counts;  // of the families that are planned, and of the scenario's own collectives
  bool is_whole = true;     // no step in it had to fail: how far that comes is not planned
};

struct Observation {
  std::vector<comm::LogEntry> collectives;
  std::vector<parallel::ParallelEvent> events;
  std::int64_t peak_bytes = 0;
  double seconds = 0.0;
  std::optional<PlannedWindow> planned{};  // in a dry run, instead of all others
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

CollectiveCounts count_collectives(const std::vector<const comm::LogEntry*>& entries, bool bytes);

// "data_parallel/all_reduce of 24 bytes for net.fc1 (line 12)", at most `limit` of them, then how many more.
std::string list_collectives(const std::vector<const comm::LogEntry*>& entries, std::size_t limit);

// ---- events ----
// Verbs give the engine the path of a module as the name of what they apply, and note here which modules that was: a
// routine may have called the model by another name than the check does.
void note_owner(const std::string& owner, const std::vector<nn::ModulePtr>& modules);

// "unshard layers.0": the kind, and the owner as its path below the model, `(root)` for the model itself, several
// joined by `+`. Without a model, or for what is not below it, the owner's own name.
std::string event_text(const parallel::ParallelEvent& event, const nn::ModulePtr& model, const std::string& model_name);
// Throws Error for an unknown kind, with the nearest known one.
parallel::EventKind event_kind(const std::string& name);

}  // namespace lockstep::run
