// Helpers for this layer's tests: parse texts to scenarios or errors.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "harness/scenario/library.hpp"

namespace lockstep::scenario::testing {

// The text of a scenario with these steps (lines start with two spaces) and the keys `head` before them.
inline std::string scenario_of(const std::string& steps, const std::string& head = {}) {
  return str("scenario: t/one\nsummary: one\nranks: {world_size: [2]}\n", head, "steps:\n", steps);
}

// The errors of a text as a user sees them, one block per mistake; empty for a valid text.
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

// The errors of a text without the lines of the file below them.
inline std::string short_errors(const std::string& text) {
  const std::string all = errors_of(text);
  std::string out;
  for (std::size_t start = 0; start < all.size();) {
    const std::size_t end = std::min(all.find('\n', start), all.size());
    const std::string line = all.substr(start, end - start);
    if (!line.starts_with("  ")) out += str(out.empty() ? "" : "\n", line);
    start = end + 1;
  }
  return out;
}

inline std::string short_errors_of_steps(const std::string& steps, const std::string& head = {}) {
  return short_errors(scenario_of(steps, head));
}

inline std::shared_ptr<const Scenario> parsed(const std::string& text) {
  return Library("/nowhere").load_text(text, "t.yaml");
}

}  // namespace lockstep::scenario::testing
