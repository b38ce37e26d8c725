// The forked child of the launcher: it runs ranks of a case and sends their outcomes. Internal to harness/launch.
#pragma once

#include "engine/device/arena.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::launch {

// The head of a frame on the pipe; the bytes of the outcome follow it. From a process of a series (series.hpp), two
// values of `rank` are none: all ranks of the case have handed in their outcomes, and the process can run another case;
// or the case cannot start, for the reason that follows.
inline constexpr std::int32_t case_is_over = -1, case_cannot_start = -2;
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

// The same in a process of a series, which goes on: runs the ranks, one thread each, sends their outcomes and returns
// whether all ended well. A rank that ended well has finished without a failure, and no error was raised in it, not
// even an expected one.
bool run_thread_ranks(const std::vector<int>& ranks, const LaunchOptions& options, device::HostWorld& world,
                      const RankFunction& function, int pipe);

// Writes a frame to the pipe. Throws ResourceError.
void send_frame(int pipe, std::int32_t rank, const std::string& bytes);
// Writes out the buffered output. With the address sanitizer, ends the process if memory has leaked.
void flush_and_check_leaks();
// Ends this process, a copy of the launcher, without the destructors of the launcher's statics.
[[noreturn]] void end_process();

// The outcome of a rank whose function threw. Call it in a catch block.
verdict::RankOutcome outcome_of_exception(int rank);

}  // namespace lockstep::launch
