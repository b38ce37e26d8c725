// The state of a pool of running cases. Internal to harness/launch: launcher.cpp waits for events and ends cases,
// start_cases.cpp starts them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/launch/guardian.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/launch/running_case.hpp"
#include "harness/launch/series.hpp"

namespace lockstep::launch {

struct Pool::State {
  int jobs = 1;
  Guardian guardian;
  std::vector<std::unique_ptr<RunningCase>> cases;
  IdleProcesses idle;

  RunningCase* open_case(int ticket, const LaunchOptions& options, bool in_series);
  void fork_children(RunningCase& test_case, const RankFunction& function);
  void start_child(RunningCase& test_case, std::vector<int> ranks, const RankFunction& function);
  template <class Run>
  Child fork_child(const Run& run);
  Child fork_for_series(const SeriesFunction& function_of);
  void start_in_series(RunningCase& test_case, const std::string& request, const SeriesFunction& function_of);
  void keep_idle(RunningCase& test_case);
  void close_inherited();
  void wait_and_handle_events();
  void enforce_deadline(RunningCase& test_case, std::int64_t now_ns);
  int free_core() const;
  void abort(RunningCase& test_case);
  void kill(RunningCase& test_case);

  static State* of_process;  // the newest pool of this process; null: none
};

}  // namespace lockstep::launch
