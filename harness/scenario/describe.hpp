// Texts about scenarios and about the language: the output of the commands list, explain and schema, and the reference
// page. Pure functions of parsed scenarios and of the vocabulary.
//
//   std::cout << explain(library.load(path), options);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::scenario {

struct ListRow {
  std::shared_ptr<const Scenario> scenario;
  std::vector<Case> cases;  // skipped cases included, with their reason
};

// One row per scenario. The options choose cases as they do for a run. Throws as expand_all does.
std::vector<ListRow> list_rows(const std::vector<std::shared_ptr<const Scenario>>& scenarios,
                               const ExpandOptions& options);
std::string list_text(const std::vector<ListRow>& rows);  // a table
std::string list_json(const std::vector<ListRow>& rows);  // a JSON array, one object per scenario

// The summary of a scenario, its cases, its steps with those of its routines, and the conditions under which it fails.
std::string explain(const std::shared_ptr<const Scenario>& scenario, const ExpandOptions& options);

// One step as a line: "replicate replicated, bucket_cap_mb: 1 -> x".
std::string step_text(const Step& step);

std::string schema();     // JSON Schema, draft-07, of scenario and routine files
std::string reference();  // scenarios/REFERENCE.md

}  // namespace lockstep::scenario
