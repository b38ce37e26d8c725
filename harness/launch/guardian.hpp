// A process that outlives its parent just long enough to end the parent's ranks.
//
// A rank asks the system to be killed with the launcher (PR_SET_PDEATHSIG) as its first action. A launcher that is
// killed while a rank is stopped before that action would leave the rank behind. The guardian ends such ranks: on the
// death of its parent it kills every process that holds the guardian's marker, an open file that all ranks inherit. It
// runs in a session of its own, so that a signal to the launcher's process group spares it, and holds none of the
// launcher's files.
//
//   Guardian guardian;      // before the first rank is forked
//   if (fork() == 0) ...    // the rank keeps the marker open for as long as it lives
#pragma once

#include <sys/types.h>

namespace lockstep::launch {

class Guardian {
 public:
  // Without room for one more process or file there is no guardian, and ranks rely on their death signal alone.
  Guardian();
  ~Guardian();  // ends the guardian without touching any rank
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

 private:
  pid_t pid_ = -1;
  int marker_ = -1;
};

}  // namespace lockstep::launch
