// Whole files: scenarios and routines from their YAML trees. Internal to this layer.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "harness/scenario/document.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

// Parse and check a text; errors go to `diagnostics`. The result may be there in spite of errors, and must not be run
// then; it is null when the text is beyond use. `expected_name`: what `scenario:` or `routine:` must say; empty:
// anything.
std::shared_ptr<Scenario> parse_scenario(const std::string& text, const std::string& file,
                                         const std::string& expected_name, Diagnostics& diagnostics,
                                         const RoutineSource& routines);
std::shared_ptr<Routine> parse_routine(const std::string& text, const std::string& file,
                                       const std::string& expected_name, Diagnostics& diagnostics,
                                       const RoutineSource& routines);

// Whether the text is that of a routine: its first key of the two is `routine`.
bool is_routine(const std::string& text);

// Reads the keys of a scenario file (scenario_reader.cpp).
void read_scenario(Reader& reader, const YamlNode& root, const std::string& expected_name, Scenario& scenario);

// Names, calls and what must hold across steps (check.cpp).
// `excused`: names that count as bound, as the step that binds them could not be read.
void check_scenario(const Scenario& scenario, const std::set<std::string>& excused, Diagnostics& diagnostics);
void check_routine(const Routine& routine, const std::set<std::string>& excused, Diagnostics& diagnostics);

}  // namespace lockstep::scenario
