// The command line: parses options, calls the command, and turns errors into messages and exit codes.
#pragma once

namespace lockstep::cli {

// Runs the program. It never throws. Exit codes:
//   0 all results are as expected     4 nothing was executed
//   1 an unexpected result            77 everything was skipped, at least one case because this machine lacks something
//   2 wrong usage, or a wrong scenario  124 the time-out of the whole run has passed
//   3 an error of the harness itself  130 interrupted by a signal
int run_app(int argc, char** argv);

}  // namespace lockstep::cli
