// Recognizes the environment variables with which mpirun, srun and torchrun start ranks, for `lockstep doctor`. The
// project's own launcher starts its ranks regardless of them.
//
//   LaunchEnvironment found = recognize_environment();
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
  std::string rendezvous;                                      // address and port; empty where the launcher gives none
  std::vector<std::pair<std::string, std::string>> variables;  // all recognized variables and their values
};

// Reads variables through `get`, which returns null for one that is not set; by default std::getenv.
LaunchEnvironment recognize_environment(const std::function<const char*(const char*)>& get = {});
// "torchrun: rank 1 of 4 (local rank 1), rendezvous at node0:29500"; "none" without a launcher.
std::string describe(const LaunchEnvironment& environment);

}  // namespace lockstep::launch
