// The variables that mpirun, srun and torchrun start ranks with: recognised, so that `doctor` can tell what it sees.
// Ranks are started by this project's own launcher; nothing here changes how.
//
//   LaunchEnvironment found = recognise_environment();
//   if (!found.launcher.empty()) print(describe(found));
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launch {

struct LaunchEnvironment {
  std::string launcher;  // "mpirun" (Open MPI, MPICH), "srun", "torchrun", or "" when none is seen
  std::optional<int> rank, world_size, local_rank;
  std::string meeting_point;                                   // address and port, where the launcher gives one
  std::vector<std::pair<std::string, std::string>> variables;  // all that was recognised
};

// Reads through `get` (by default the process's environment): null for a variable that is not set.
LaunchEnvironment recognise_environment(const std::function<const char*(const char*)>& get = {});
// "torchrun: rank 1 of 4 (local rank 1), meeting at node0:29500"; "none" without one.
std::string describe(const LaunchEnvironment& environment);

}  // namespace lockstep::launch
