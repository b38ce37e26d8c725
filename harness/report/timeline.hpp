// The timeline of a case as one file: what its ranks left under `lockstep run --timeline`
// (harness/run/observe/timeline.hpp), joined into a trace in the JSON format of Chrome, which Perfetto opens and the
// page draws.
//
//   std::string file = join_timeline("when/timeline-3", {2, 2});   // two stages of two ranks: when/timeline-3.json
//
// In `traceEvents` a pid is a rank and a tid a stream; tid 0 holds the steps and modules of the rank's own thread.
//   ph X      a launch (cat launch), a collective (cat collective; args: family, phase, axis, group_size, group,
//             sequence, bytes, owner, and resumed, where the second half of a deferred one began), a step or a module.
//             args.unfinished where it never ended
//   ph s t f  joins a collective's boxes across the ranks of its group, by stage, group and sequence number
//   ph C      bytes in use, by purpose
// Times are microseconds since the first event of the case. `otherData` says which case it is, which clock it was, what
// was dropped, which ranks left nothing, and the bounds on memory that the scenario set.
#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

// What came before, in a folder that may not exist yet, goes; other files stay. Throws Error.
void clear_timelines(const std::string& folder);

// `prefix` as given to the ranks, `world_sizes` stage by stage. Writes PREFIX.json and removes what the ranks left;
// gives its path, or nothing when no rank left anything. A rank that was ended has left nothing, or lines without an
// end: what is there is kept. Throws Error when the file cannot be written.
std::string join_timeline(const std::string& prefix, const std::vector<int>& world_sizes);

}  // namespace lockstep::report
