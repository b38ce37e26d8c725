// `lockstep run`: from scenarios to cases, and from their results to the console, the results file, JUnit and the page.
#pragma once

#include "harness/cli/run_settings.hpp"

namespace lockstep::cli {

// Returns the exit code: 0, 1, 3, 4, 77, 124 or 130 (app.hpp). Throws ScenarioError or Error before any case starts,
// for scenarios, options or files that are wrong.
int run_command(const RunSettings& settings);

}  // namespace lockstep::cli
