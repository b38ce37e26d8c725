// Commands that run no case: list, explain, validate, schema, reference, defects, explain-hang. Each prints to standard
// output and returns its exit code. They throw ScenarioError or Error for scenarios, names or files that are wrong.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

int list_command(const std::vector<std::string>& what, const scenario::ExpandOptions& expand, bool json);
// `only` chooses the case whose planned collectives are shown, as --case; empty: the first that can run.
int explain_command(const std::string& name, const std::string& only = "");
// 0, or 2 when a file has errors. Without files it validates all scenarios and routines of the library.
int validate_command(const std::vector<std::string>& files);
int schema_command();
// The reference page of the language (scenarios/REFERENCE.md), or the page of the tests that scenarios mirror
// (scenarios/README.md).
int reference_command(bool documents);
int defects_command(bool json);
// `path` is a results file, its folder of dumps, or the folder of one case in it.
int explain_hang_command(const std::string& path);

}  // namespace lockstep::cli
