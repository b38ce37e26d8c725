#include "harness/cli/interrupts.hpp"

#include <csignal>
#include <cstring>

#include "engine/core/text.hpp"

namespace lockstep::cli {

namespace {

volatile std::sig_atomic_t interrupt_seen = 0;  // the last signal; 0: none

}  // namespace

void reset_inherited_signals() {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { interrupt_seen = signal; };
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);  // without SA_RESTART, so that a blocked wait returns
  }
}

bool interrupted() { return interrupt_seen != 0; }
bool out_of_time() { return interrupt_seen == SIGALRM; }

int interrupting_signal() { return interrupt_seen; }
void note_interrupt(int signal) { interrupt_seen = signal; }

std::string interruption() {
  if (!interrupted()) return "";
  if (out_of_time()) return "the time-out of the whole run has passed";
  return str("the run was interrupted (SIG", ::sigabbrev_np(interrupt_seen), ")");
}

}  // namespace lockstep::cli
