// Options that several subcommands share, and checks of their arguments.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "harness/cli/choices.hpp"

namespace lockstep::cli {

// An option that names a file or folder to write. A word that means "none" is refused, because the option would write
// to a file of this name.
CLI::Option& add_output(CLI::App& command, const std::string& names, std::string& path, const std::string& description);

// A word that is given must not be empty, as that of a variable that is not set is.
CLI::Validator not_empty();

// A positive number of seconds.
CLI::Validator seconds();

// Which cases: names, values, world size, launch, device, tags, shard and limits.
void add_selection(CLI::App& command, Choices& choices);

// How the cases run: jobs, deadline, order of sums, order check.
void add_execution(CLI::App& command, Choices& choices);

// Moves the options that several subcommands share into the settings of the run. Throws Error for values that do not
// fit together.
void apply_shared_options(Choices& choices);

}  // namespace lockstep::cli
