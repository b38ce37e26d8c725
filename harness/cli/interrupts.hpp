// Signals that end a run in an orderly way: the ranks are killed, temporary folders removed, and the results so far
// kept.
#pragma once

#include <string>

namespace lockstep::cli {

// Undoes what the program that started this one has left: with SIGCHLD ignored, nobody learns how a child has ended,
// and a blocked signal ends no run. Call it before any child or thread.
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
