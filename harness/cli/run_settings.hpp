// The settings of `lockstep run`, as the command line gives them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

struct RunSettings {
  std::vector<std::string> what{};  // names, files, folders; empty: all scenarios that come with the program
  scenario::ExpandOptions expand{};
  std::string failed{};  // a results file: only the cases with an unexpected result in it
  int repeat = 1;
  int jobs = 0;                       // cases at once; 0: default_jobs()
  double run_timeout = 0.0;           // seconds for the whole run; 0: none
  double collective_deadline = 10.0;  // seconds
  std::string results{};
  std::string junit{};
  std::string report{};
  std::string defect{};
  std::string trace_bits{};      // folder for hashes of outputs and gradients; empty: none
  std::string timeline{};        // folder for timelines; empty: none
  std::string files{};           // folder for the files that cases write; empty: they are removed
  std::string link{};            // mpi, tcp or none; empty: as the environment says (launch/environment.hpp)
  std::string schedule{};        // a request of launch/schedule_search.hpp; empty: the machine decides who runs
  std::int64_t schedules = 1;    // of random and pct, per case
  std::string schedule_files{};  // folder for the schedules that fail; empty: lockstep-schedules
  bool fail_fast = false;
  bool order_check = true;
  bool process_per_case = false;
  std::string color = "auto";
  std::string progress = "auto";
  int verbosity = 0;                   // -1 quiet, 0, 1 verbose
  std::vector<std::string> command{};  // argv, for the results file
};

}  // namespace lockstep::cli
