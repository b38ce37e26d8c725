// Which cases a command runs: by names, files and folders, by --failed, and by the options that expand scenarios.
#pragma once

#include <string>
#include <vector>

#include "harness/cli/run_settings.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::cli {

// The cases of a run in the order in which they start, checked as far as is possible before launch (run/trace). With
// --failed, only the cases that failed there. `repeat` appends the list again. A user's own files are evaluated in a
// child process first. Throws ScenarioError or Error.
std::vector<scenario::Case> cases_of(scenario::Library& library, const RunSettings& settings);

// Sets the devices that this build and machine have, and why they lack the others. Initialises no device, so that ranks
// may be forked later.
void find_devices(scenario::ExpandOptions& expand);

// The arguments with which `lockstep run` finds the scenarios of the rows again, sorted, each once: the name of a
// scenario below `root`, the file of any other.
std::vector<std::string> scenarios_of(const std::vector<verdict::CaseResult>& rows, const std::string& root);

}  // namespace lockstep::cli
