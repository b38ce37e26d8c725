// Signals that end a run in order: ranks under way are ended, temporary folders removed, results so far kept.
#pragma once

#include <string>

namespace lockstep::cli {

// SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGALRM (the time-out of the whole run) from now on end the run in order. A
// SIGHUP that is ignored (nohup) stays so.
void catch_interrupts();
bool interrupted();
bool out_of_time();
// "the run was interrupted (SIGTERM)"; empty while it was not.
std::string interruption();

}  // namespace lockstep::cli
