// Parses and checks scenario and routine files. Internal to this layer.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "harness/scenario/document.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

// Parses and checks a text and reports errors to `diagnostics`. The result is null when the text has no usable YAML
// tree. A result with errors must not be run. `expected_name` is the required value of `scenario:` or `routine:`;
// empty: any.
std::shared_ptr<Scenario> parse_scenario(const std::string& text, const std::string& file,
                                         const std::string& expected_name, Diagnostics& diagnostics,
                                         const RoutineSource& routines);
std::shared_ptr<Routine> parse_routine(const std::string& text, const std::string& file,
                                       const std::string& expected_name, Diagnostics& diagnostics,
                                       const RoutineSource& routines);

// Whether the text is a routine: the key `routine` comes first, or there is no key `scenario`.
bool is_routine(const std::string& text);

// Reads the keys of a scenario file (scenario_reader.cpp).
void read_scenario(Reader& reader, const YamlNode& root, const std::string& expected_name, Scenario& scenario);

// Check names, calls and conditions that concern several steps (check.cpp). `assumed` are names that count as bound,
// because the steps that bind them could not be read.
void check_scenario(const Scenario& scenario, const std::set<std::string>& assumed, Diagnostics& diagnostics);
void check_routine(const Routine& routine, const std::set<std::string>& assumed, Diagnostics& diagnostics);

}  // namespace lockstep::scenario
