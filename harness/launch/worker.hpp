// What runs in a forked child: the ranks of a case, and how their outcomes get out. Internal to harness/launch.
#pragma once

#include "engine/device/arena.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::launch {

// A frame on the pipe: rank and length, then the bytes of the outcome.
struct FrameHead {
  std::int32_t rank = 0;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;
};

// Makes the freshly forked process a good child: dies with `parent`, has a process group of its own, reads nothing,
// has default signal handling. Ends the process when the parent is already gone.
void become_child(int parent);

// Runs these ranks (one in this thread, several in a thread each), sends their outcomes over `pipe` and ends the
// process.
[[noreturn]] void run_ranks(const std::vector<int>& ranks, const LaunchOptions& options, device::HostWorld& world,
                            const RankFunction& function, int pipe);

// The outcome of a rank whose function let an exception out. To be called in a handler.
verdict::RankOutcome outcome_of_exception(int rank);

}  // namespace lockstep::launch
