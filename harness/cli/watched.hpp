// Evaluating a user's files in a child process that is watched: a file that takes too long, too much memory, or ends
// its process gives an error that names the file and the line it was at, and leaves nothing behind. The evaluation's
// own budget (scenario/evaluation.hpp) ends nearly all of them before, with the exact place.
#pragma once

#include <cstdint>
#include <functional>

#include "harness/scenario/vocabulary.hpp"

namespace lockstep::cli {

struct WatchLimits {
  // Of one file. More than the evaluation allows itself, as it ends itself with a better message.
  double cpu_seconds = 2 * scenario::limits::evaluation_seconds;
  double seconds = 12 * scenario::limits::evaluation_seconds;  // of a child that waits for something
  std::int64_t heap_mb = 4 * scenario::limits::evaluation_mb;
};

// Runs the command in a child and returns its exit code; 2, with a message on standard error, for one that had to be
// ended or ended by a signal. The call returns in the child too, with the command's own code, so that whatever a
// process does at its end is done there; exceptions leave it there as well.
int in_watched_child(const std::function<int()>& command, const WatchLimits& limits = {});

// Runs the work in a child for nothing but to see that it ends; whatever it returns or throws is left to the caller to
// find again. Throws Error, naming the file, when it had to be ended.
void try_in_child(const std::function<void()>& work, const WatchLimits& limits = {});

}  // namespace lockstep::cli
