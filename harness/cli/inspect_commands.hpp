// Commands that look and run nothing: list, explain, validate, schema, defects, explain-hang. Each gives its exit code.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

int list_command(const std::vector<std::string>& what, const scenario::ExpandOptions& expand, bool json);
int explain_command(const std::string& name);
int validate_command(const std::vector<std::string>& files);
int schema_command();
int reference_command();  // the reference page of the language, as scenarios/REFERENCE.md holds it
int defects_command(bool json);
int explain_hang_command(const std::string& folder);

}  // namespace lockstep::cli
