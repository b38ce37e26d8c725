// The forked child of the launcher: it runs ranks of a case and sends their outcomes. Internal to harness/launch.
#pragma once

#include "engine/device/arena.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::launch {

// The head of a frame on the pipe; the bytes of the outcome follow it.
struct FrameHead {
  std::int32_t rank = 0;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;
};

// Sets up a forked process: it dies with `parent`, has its own process group, default signal handlers and an empty
// standard input. Ends the process when the parent has already ended.
void become_child(int parent);

// Runs the ranks, sends their outcomes over `pipe` and ends the process. A process rank runs on the calling thread,
// thread ranks on one thread each.
[[noreturn]] void run_ranks(const std::vector<int>& ranks, const LaunchOptions& options, device::HostWorld& world,
                            const RankFunction& function, int pipe);

// The outcome of a rank whose function threw. Call it in a catch block.
verdict::RankOutcome outcome_of_exception(int rank);

}  // namespace lockstep::launch
