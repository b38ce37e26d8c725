// Evaluates a user's files in a child process that is watched. A file that takes too much time or memory, or that ends
// its process, gives an error with the file and the line that was evaluated, and leaves nothing behind. The budget of
// the evaluation (scenario/evaluation.hpp) stops nearly all such files earlier, with the exact place.
#pragma once

#include <cstdint>
#include <functional>

#include "harness/scenario/vocabulary.hpp"

namespace lockstep::cli {

struct WatchLimits {
  // Of one file. Larger than the budget of the evaluation, which stops with a better message.
  double cpu_seconds = 2 * scenario::limits::evaluation_seconds;
  double seconds = 12 * scenario::limits::evaluation_seconds;  // wall-clock time, for a child that waits
  std::int64_t heap_mb = 4 * scenario::limits::evaluation_mb;
};

// Runs the command in a child and returns its exit code, or 2 with a message on standard error when the child was
// killed or ended by a signal. The call also returns in the child, with the command's code, and exceptions leave it
// there, so that the child ends as the program does.
int in_watched_child(const std::function<int()>& command, const WatchLimits& limits = {});

// Runs the work in a child only to see that it ends. Its results and exceptions are lost; the caller repeats the work.
// Throws Error with the file when the child was killed or ended by a signal.
void try_in_child(const std::function<void()>& work, const WatchLimits& limits = {});

}  // namespace lockstep::cli
