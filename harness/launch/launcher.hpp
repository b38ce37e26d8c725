// Launching a case: the ranks start, run a function each, and end; whatever happens, one outcome a rank comes back, and
// no process, shared memory or temporary file is left.
//
// Process ranks are forked from the launcher, thread ranks live in one forked child, so the launcher itself never opens
// Kokkos, BLAS or a thread. Children die with their parent, however it ends (guardian.hpp); they are watched, killed at
// the time-out, and collected.
//
//   LaunchOptions options{.world_size = 4, .launch = Launch::process, .timeout_seconds = 60};
//   LaunchResult result = launch(options, [&](int rank) { return run_case_on_rank(...); });
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/recorder.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::launch {

enum class Launch { process, thread };

struct LaunchOptions {
  int world_size = 1;
  Launch launch = Launch::process;
  double timeout_seconds = 60.0;
  double collective_deadline_seconds = 10.0;
  std::int64_t memory_bytes = 0;  // that a rank may use, for the process's own limit; 0: none
  std::string folder;             // the case's own folder, made before and removed after; empty: none
};

// Runs on each rank, with its RankContext current and its communicator ready. Must not throw: failures are part of the
// outcome; an exception that does escape becomes a failed outcome.
using RankFunction = std::function<verdict::RankOutcome(int rank)>;

struct LaunchResult {
  std::vector<verdict::RankOutcome> outcomes;  // one a rank, in order; killed, hung and crashed ones say so
  std::vector<comm::RankStory> stories;        // the flight recorder
  double seconds = 0.0;
};

LaunchResult launch(const LaunchOptions& options, const RankFunction& function);

// Several cases at once, at most `jobs` under way: start() returns at once, next() waits for the next finished one.
class Pool {
 public:
  explicit Pool(int jobs);
  ~Pool();  // kills what still runs
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  bool full() const;
  int num_running() const;
  void start(int ticket, const LaunchOptions& options, const RankFunction& function);
  struct Finished {
    int ticket;
    LaunchResult result;
  };
  // The next case that ends. `stop` is asked now, after a signal, and at least once a second; once it holds, all are
  // ended.
  Finished next(const std::function<bool()>& stop = {});
  void kill_all();  // on interrupt: ends every case; their results come as killed

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A rank that a scenario tells to end early on purpose (`exit`): hands in the outcome so far, marked as killed and
// expected, and ends its process by SIGKILL. Throws Error on a rank that is a thread.
[[noreturn]] void exit_rank_by_kill();
[[noreturn]] void exit_rank_by_kill(verdict::RankOutcome so_far);

}  // namespace lockstep::launch
