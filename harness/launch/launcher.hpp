// Launching the ranks of a case. In every case, launch() returns one outcome per rank and leaves no process, shared
// memory or temporary file behind.
//
// Process ranks are forked from the launcher. Thread ranks run in one forked child, which may run further cases later
// (Pool::start_in_series). The launcher itself therefore never opens Kokkos, BLAS or a thread. The children die with
// their parent, however it ends (guardian.hpp). The launcher watches them, kills them at the time-out, and waits for
// them.
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

class Hosts;
struct RunSchedule;  // run_schedule.hpp

enum class Launch { process, thread };

struct LaunchOptions {
  int world_size = 1;
  Launch launch = Launch::process;
  double timeout_seconds = 60.0;
  double collective_deadline_seconds = 10.0;
  std::int64_t memory_bytes = 0;  // budget of one rank, from which the kernel's limit on its process follows; 0: none
  int num_ranks_at_once = 0;      // at most, of all cases that share the machine's devices; 0: this case alone
  std::string folder;             // the case's folder, created before the ranks and removed after them; empty: none
  // Of a run on several hosts: every launcher launches the same cases, one at a time, in the same order. It forks the
  // ranks of its own host, and all launchers have the outcomes of all ranks in the end. Null: all ranks run here.
  Hosts* hosts = nullptr;
  // Thread ranks run under this schedule, and their decisions are recorded in it. Null: the machine decides.
  std::shared_ptr<RunSchedule> schedule{};
};

// Runs on each rank, with its RankContext current and its communicator ready. It must not throw, because failures are
// part of the outcome; an exception that escapes becomes a failed outcome.
using RankFunction = std::function<verdict::RankOutcome(int rank)>;

// Makes the rank function of a case from a text that names the case, in a process that was forked before the case
// started. It may throw.
using SeriesFunction = std::function<RankFunction(const std::string& request)>;

struct LaunchResult {
  std::vector<verdict::RankOutcome>
      outcomes;  // one per rank, in order, also for ranks that were killed, hung or crashed
  // The flight recorder, one entry per rank; complete on host 0 where a rank did not finish well. Empty on a host
  // without ranks.
  std::vector<comm::RankHistory> stories;
  double seconds = 0.0;
};

// Runs one case to its end.
LaunchResult launch(const LaunchOptions& options, const RankFunction& function);

// Runs several cases at once, at most `jobs`: start() returns immediately, next() waits for the next case that ends.
// Used from one thread.
class Pool {
 public:
  explicit Pool(int jobs);  // throws Error when jobs < 1
  ~Pool();                  // kills the cases that still run
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  bool full() const;
  int num_running() const;
  void start(int ticket, const LaunchOptions& options, const RankFunction& function);
  // Like start(), for thread ranks of one host without a schedule: they run in a process that has run earlier cases, if
  // one is idle, and else in a new one. The process goes on only after a case in which every rank ended well. Idle
  // processes end with the pool, and before a case that start() starts. `function_of` is the same for all cases.
  void start_in_series(int ticket, const LaunchOptions& options, const std::string& request,
                       const SeriesFunction& function_of);
  struct Finished {
    int ticket;
    LaunchResult result;
  };
  // Waits for the next case that ends. Calls `stop` at once, after a signal, and at least once per second; when it
  // returns true, all cases are killed.
  Finished next(const std::function<bool()>& stop = {});
  void kill_all();  // after an interrupt; the outcomes of ranks that had not finished are `killed`
  // Kills the ranks of this process's pool and waits for their end. For a process that ends without destructors.
  static void end_ranks_of_process() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Ends the calling rank on purpose (`exit` of a scenario): hands in its outcome so far, marked as killed and expected,
// and ends its process by SIGKILL. Throws Error on a thread rank.
[[noreturn]] void exit_rank_by_kill();
[[noreturn]] void exit_rank_by_kill(verdict::RankOutcome so_far);
// End the process of the calling rank without an outcome, as a crash does: by SIGKILL, or by an exit code.
[[noreturn]] void end_rank_by_signal();
[[noreturn]] void end_rank_by_code(int code);

}  // namespace lockstep::launch
