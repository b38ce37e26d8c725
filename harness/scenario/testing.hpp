// Help for this layer's own tests: texts in, errors or scenarios out.
#pragma once

#include <memory>
#include <string>

#include "harness/scenario/library.hpp"

namespace lockstep::scenario::testing {

// A scenario of these steps (two spaces in front of each line), with `head` before them.
inline std::string scenario_of(const std::string& steps, const std::string& head = {}) {
  return str("scenario: t/one\nsummary: one\nranks: {world_size: [2]}\n", head, "steps:\n", steps);
}

// The errors of a text, one block a mistake, as a user sees them; empty when there are none.
inline std::string errors_of(const std::string& text, const std::string& root = "/nowhere") {
  Library library(root);
  try {
    library.load_text(text, "t.yaml");
  } catch (const ScenarioError& error) {
    return error.message();
  }
  return {};
}

inline std::string errors_of_steps(const std::string& steps, const std::string& head = {}) {
  return errors_of(scenario_of(steps, head));
}

inline std::shared_ptr<const Scenario> parsed(const std::string& text) {
  return Library("/nowhere").load_text(text, "t.yaml");
}

}  // namespace lockstep::scenario::testing
