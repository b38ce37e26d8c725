// A process that outlives the launcher just long enough to kill the launcher's ranks.
//
// The first action of a rank is to ask the kernel for a death signal (PR_SET_PDEATHSIG), so that it dies with the
// launcher. If the launcher is killed while a rank is stopped before that action, the rank is left behind. The guardian
// kills such ranks. When its parent dies, it kills every process that holds the marker, an open file that all ranks
// inherit. It runs in its own session, so that a signal to the launcher's process group does not reach it, and it holds
// none of the launcher's files.
//
//   Guardian guardian;      // before the first rank is forked
//   if (fork() == 0) ...    // the rank holds the marker until it ends
#pragma once

#include <sys/types.h>

namespace lockstep::launch {

class Guardian {
 public:
  // If the machine refuses another process or file, there is no guardian, and ranks rely on their death signals alone.
  Guardian();
  ~Guardian();  // kills the guardian, and no rank
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

 private:
  pid_t pid_ = -1;
  int marker_ = -1;
};

}  // namespace lockstep::launch
