// An observation window over steps on one rank: its collectives, the events of the parallel APIs, its peak memory and
// its duration. `observe` opens and closes it; expect_collectives, expect_events and counts() read it afterwards.
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

// The number of collectives, or their bytes, by family and operation.
using CollectiveCounts = std::map<std::pair<std::string, std::string>, std::int64_t>;

// The content of a window in a dry run.
struct PlannedWindow {
  CollectiveCounts counts;  // of the planned families, and of the collectives that the scenario's steps call
  bool is_complete = true;  // no step in it has `raises`: the collectives of such a step are not planned
};

// The launches of a window: their places in the trace of the rank (engine/device/trace.hpp).
struct LaunchRange {
  std::size_t first = 0, last = 0;  // `last` excluded
};

struct Observation {
  std::vector<comm::LogEntry> collectives;
  std::vector<parallel::ParallelEvent> events;
  bool has_all_events = true;                        // false: the rank kept no more of them (parallel::most_events)
  std::map<std::string, std::int64_t> computations;  // by operation (engine/autograd/watch.hpp)
  std::optional<LaunchRange> launches{};             // of a window that records them
  std::int64_t peak_bytes = 0;
  double seconds = 0.0;
  std::optional<PlannedWindow> planned{};  // in a dry run, instead of the members above
  bool worked = false;                     // a step in it used the engine (does_work)
  bool allocated = false;                  // memory of its purposes was allocated in it
};

// ---- trivial readings ----
// A reading is trivial if no fault of the engine can change it: the peak of a window without allocation, and the
// seconds or counts of a window without work. A check that uses such a reading is trivial. The readings are counted per
// rank, and names that `let` binds to one are marked (Frame::from_trivial_reading).
void note_trivial_reading();
// The trivial readings since its construction.
class TrivialReadings {
 public:
  TrivialReadings();
  bool any() const;

 private:
  std::int64_t num_before_;
};
// Whether a step builds, computes, communicates, or applies an API. Steps that observe, check or control do not.
bool does_work(const scenario::Step& step);

// ---- collectives ----
// Selects collectives of a window. The families start_up and checkpoint are excluded unless a check names them.
struct CollectiveFilter {
  std::optional<comm::Phase> phase;
  std::optional<DType> dtype;
  std::vector<const comm::ProcessGroup*> groups;  // those of the mesh; empty: all
  bool start_up = false;
  bool checkpoint = false;
};
std::vector<const comm::LogEntry*> select(const Observation& observation, const CollectiveFilter& filter);

// The number of entries, or with `bytes` the sum of their bytes.
CollectiveCounts count_collectives(const std::vector<const comm::LogEntry*>& entries, bool bytes);

// "data_parallel/all_reduce of 24 bytes in backward for net.fc1 (line 12), ... and 3 more", with at most `limit`
// entries.
std::string list_collectives(const std::vector<const comm::LogEntry*>& entries, std::size_t limit);

// ---- events ----
// Verbs pass the path of a module to the engine as the owner of events, and note the modules of that owner here. A
// check may use another name for the model than the routine that applied the API.
void note_owner(const std::string& owner, const std::vector<nn::ModulePtr>& modules);

// The path of an event's owner below the model: `(root)`, `layers.0`, `layers.0+layers.1`; empty for an owner outside
// the model. `model_name` is the path of the model in the check.
std::string path_of_owner(const parallel::ParallelEvent& event, const nn::ModulePtr& model,
                          const std::string& model_name);
// The paths of all owners below the model, sorted.
std::vector<std::string> paths_of_owners(const nn::ModulePtr& model);

// "unshard layers.0": the kind, and the path of the owner below the model (or its name, for an owner outside).
std::string event_text(const parallel::ParallelEvent& event, const nn::ModulePtr& model, const std::string& model_name);
// Throws Error for an unknown kind, with the most similar known one.
parallel::EventKind event_kind(const std::string& name);

}  // namespace lockstep::run
