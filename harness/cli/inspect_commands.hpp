// Commands that look and run nothing: list, explain, validate, schema, defects, explain-hang. Each gives its exit code.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

int list_command(const std::vector<std::string>& what, const scenario::ExpandOptions& expand, bool json);
int explain_command(const std::string& name, const std::string& only = "");  // `only`: as --case, for the plan
int validate_command(const std::vector<std::string>& files);
int schema_command();
// The reference page of the language (scenarios/REFERENCE.md), or the page of what mirrors which test
// (scenarios/README.md).
int reference_command(bool documents);
int defects_command(bool json);
int explain_hang_command(const std::string& folder);

}  // namespace lockstep::cli
