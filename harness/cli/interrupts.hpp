// Signals that end a run in an orderly way: the ranks are killed, temporary folders removed, and the results so far
// kept.
#pragma once

#include <string>

namespace lockstep::cli {

// Restores the default action of SIGCHLD and unblocks all signals. A program inherits both: if SIGCHLD is ignored,
// waitpid() gives no exit code of a child, and a blocked signal does not end a run. Call it before the first child or
// thread.
void reset_inherited_signals();

// Installs handlers for SIGINT, SIGTERM, SIGHUP, SIGQUIT, and SIGALRM, which is the time-out of the whole run. A SIGHUP
// that is ignored (nohup) stays ignored.
void catch_interrupts();
bool interrupted();               // one of these signals has come
bool out_of_time();               // it was SIGALRM
int interrupting_signal();        // its number; 0: none
void note_interrupt(int signal);  // another process of the run got this signal
// "the run was interrupted (SIGTERM)"; empty before a signal.
std::string interruption();

}  // namespace lockstep::cli
