// The timeline of a case: joins the files that its ranks wrote under `lockstep run --timeline`
// (harness/run/observe/timeline.hpp) into one trace in Chrome's JSON format, which Perfetto opens and the page draws.
//
//   std::string file = join_timeline("when/timeline-3", {2, 2});   // two stages of two ranks: when/timeline-3.json
//
// In `traceEvents` a pid is a rank and a tid is a stream; tid 0 holds the steps and modules of the rank's own thread.
//   ph X      a box: a launch (cat launch), a collective (cat collective), a step or a module. The args of a collective
//   are
//             family, phase, axis, group_size, group, sequence, bytes, owner, and resumed, the time at which the rank
//             began to wait in it. args.unfinished marks a box without an end
//   ph s t f  the arrows that join a collective's boxes across the ranks of its group, by stage, group and sequence
//   number ph C      bytes in use, by purpose
// Times are microseconds since the first event of the case. `otherData` holds the case, the clock, the number of
// dropped events, the ranks that wrote nothing, and the bounds on memory that the scenario sets.
#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

// Creates the folder where it is missing and removes the timelines of an earlier run. Other files stay. Throws Error.
void clear_timelines(const std::string& folder);

// Writes PREFIX.json and removes the files of the ranks. Returns its path, or an empty text when no rank wrote
// anything. `prefix` is the one that the ranks were given; `world_sizes` has one entry per stage. A rank that was
// killed has written nothing or an incomplete file, whose complete lines are kept. Throws Error when the file cannot be
// written.
std::string join_timeline(const std::string& prefix, const std::vector<int>& world_sizes);

}  // namespace lockstep::report
