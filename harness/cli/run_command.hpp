// `lockstep run`: scenarios to cases to results, console, JUnit and page.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"

namespace lockstep::cli {

struct RunSettings {
  std::vector<std::string> what;  // names, files, folders; empty: all that come with the program
  scenario::ExpandOptions expand;
  std::string failed;  // results file: only what failed there
  int repeat = 1;
  int jobs = 0;              // 0: default_jobs()
  double run_timeout = 0.0;  // seconds for the whole run; 0: none
  double collective_deadline = 10.0;
  std::string results;
  std::string junit;
  std::string report;
  std::string defect;
  std::string trace_bits;  // folder for hashes of outputs and gradients
  std::string timeline;    // folder for what each case did when
  bool fail_fast = false;
  bool order_check = true;
  std::string color = "auto";
  std::string progress = "auto";
  int verbosity = 0;                 // -1 quiet, 1 verbose
  std::vector<std::string> command;  // argv, for the results file
};

// The cases of what is asked for; throws ScenarioError or Error.
std::vector<scenario::Case> cases_of(scenario::Library& library, const RunSettings& settings);
// Exit code as interface: 0, 1, 3, 4, 77, 124, 130.
int run_command(const RunSettings& settings);

}  // namespace lockstep::cli
