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
#include "harness/scenario/document.hpp"

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
  bool worked = false;                     // a step in it did something with the engine (does_work)
  bool allocated = false;                  // memory of its purposes was taken within it
};

// ---- windows in which nothing happened ----
// The peak of a window that allocated nothing, and the seconds or counts of one without work, hold whatever the engine
// does: a check that rests on such a reading is trivial. Readings are counted on each rank; a name that `let` binds to
// one carries the mark (Frame::from_empty).
void note_empty_reading();
class EmptyReadings {  // since it was made
 public:
  EmptyReadings();
  bool any() const;

 private:
  std::int64_t before_;
};
// Whether a step builds, computes, communicates, or applies an API: not what observes, checks or steers.
bool does_work(const scenario::Step& step);

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

// The path below the model that an owner of events has: `(root)`, `layers.0`, `layers.0+layers.1`; empty when it is not
// of this model. `model_name` is the path that the check names the model by.
std::string path_of_owner(const std::string& owner, const nn::ModulePtr& model, const std::string& model_name);
// Of all that has events below the model, in order of their names.
std::vector<std::string> paths_of_owners(const nn::ModulePtr& model);

// "unshard layers.0": the kind, and the owner as its path below the model; for what is not below it, the owner's own
// name.
std::string event_text(const parallel::ParallelEvent& event, const nn::ModulePtr& model, const std::string& model_name);
// Throws Error for an unknown kind, with the nearest known one.
parallel::EventKind event_kind(const std::string& name);

}  // namespace lockstep::run
