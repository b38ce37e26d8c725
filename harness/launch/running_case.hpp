// One case while its ranks run: its processes, the outcomes they have sent, and how they ended. Internal to
// harness/launch; the pool (launcher.cpp) starts the processes and waits for events.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "engine/comm/culprits.hpp"
#include "engine/comm/ferry.hpp"
#include "engine/device/arena.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::launch {

// A forked process and the bytes it has sent that are not yet a complete frame.
struct Child {
  pid_t pid = -1;
  int pidfd = -1;     // readable when the process ends; -1: the kernel has no pidfds, and the process is polled
  int pipe = -1;      // its outcomes; -1: closed
  int requests = -1;  // the socket to a process of a series (series.hpp); -1: its ranks are those of one case
  std::vector<int> ranks;
  std::string received;
  bool gone = false;     // it has ended and was waited for
  bool is_idle = false;  // a process of a series that has run its case and can run another
};

// How far a case is that several hosts run (exchange.hpp).
enum class ExchangeState {
  ranks_run,  // ranks of this host run
  parts,      // host 0 waits for the outcomes of the other hosts
  result,     // another host waits for all outcomes from host 0
  closing,    // the ferry waits for the other ferries
  closed,     // this host waits until all others have closed the case
  over,       // or there is one host only
};

struct RunningCase {
  int ticket = 0;
  LaunchOptions options;
  std::unique_ptr<device::HostWorld> world;
  int world_file = -1;  // of a case in a series, until it is sent; -1: closed
  std::vector<Child> children;
  std::vector<verdict::RankOutcome> outcomes;
  std::vector<bool> handed_in;  // per rank: its outcome arrived intact
  std::int64_t start_ns = 0;
  std::int64_t deadline_ns = 0;             // time of the next measure: the abort, then the kill
  bool aborted = false;                     // the time-out has passed
  bool interrupted = false;                 // the run was interrupted
  std::vector<comm::AwaitedRank> culprits;  // the ranks that others waited for when the case was aborted
  bool is_complete = false;                 // complete_outcomes() has run

  // Of a case that several hosts run.
  ExchangeState exchange = ExchangeState::over;
  std::uint64_t number = 0;  // the same on every host
  comm::HostMap hosts;
  std::unique_ptr<comm::Ferry> ferry;     // where ranks on other hosts are peers of ranks here
  std::int64_t exchange_deadline_ns = 0;  // of the current state
  std::int64_t kill_ns = std::numeric_limits<std::int64_t>::max();  // when ranks whose peers are lost are killed
  std::string lost_reason;                                          // why peers are missing; empty: none is
  std::vector<bool> has_part;                                       // per host: its outcomes have arrived
  std::vector<bool> is_lost;                                        // per host
  // The flight recorder at the time-out, of the ranks of this host; on host 0 in the end of all ranks. Hosts take it
  // some time before they abort the case, because the abort of one ends the waits of all.
  std::vector<comm::RankHistory> at_time_out;
  std::vector<comm::RankHistory> stories_of_others;  // on host 0, of a case that did not go well

  bool is_local(int rank) const { return hosts.is_local(rank); }
  bool ranks_run() const;
  // The time-out has passed on this host. Another host may have aborted the case already.
  bool is_out_of_time() const { return aborted || !at_time_out.empty(); }
  bool running() const { return ranks_run() || exchange != ExchangeState::over; }
};

void close_fd(int& fd);
void close_descriptors(Child& child);
// "2.5 s"
std::string seconds_text(double seconds);

// Reads all bytes that the pipe holds, and takes the outcomes that are complete. Does not block.
void read_pipe(RunningCase& test_case, Child& child);
// Ends the process group of a process that has ended or is to end, waits for the process, and completes the outcomes
// of its ranks.
void collect(RunningCase& test_case, Child& child);
// Whether the process has ended. It is not waited for.
bool has_ended(const Child& child);
// Adds to the outcomes of the ranks of this host, whose processes are all gone, what the flight recorder says about
// their ends. Once per case.
void complete_outcomes(RunningCase& test_case);
// Of the ranks that were ended at the time-out, those that waited for another rank are bystanders.
void blame_culprits(RunningCase& test_case);
// The result of a case whose processes are all gone. Moves the outcomes out of the case and releases its world.
LaunchResult finish(RunningCase& test_case);

}  // namespace lockstep::launch
