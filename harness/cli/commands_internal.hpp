// The subcommands, their help and their options.
#pragma once

#include <CLI/CLI.hpp>

#include "harness/cli/choices.hpp"

namespace lockstep::cli {

// Adds every subcommand with its help and its options, which fill `choices` when `app` parses a command line.
void define_commands(CLI::App& app, Choices& choices);

}  // namespace lockstep::cli
