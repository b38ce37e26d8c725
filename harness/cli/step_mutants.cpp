#include "harness/cli/step_mutants.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "harness/scenario/vocabulary.hpp"

namespace lockstep::cli {

namespace {

using scenario::Group;
using scenario::Step;
using scenario::Steps;
using scenario::Verb;

bool brings_feature(Verb verb) {
  if (verb == Verb::delay) return false;  // results must not depend on it
  switch (scenario::spec_of(verb).group) {
    case Group::models:
    case Group::parallel:
    case Group::training:
    case Group::collectives:
    case Group::state:
    case Group::faults:
      return true;
    case Group::observation:
      return verb == Verb::hook;
    case Group::control:
      return verb == Verb::use;
    case Group::set_up:  // exact_products: most processors round a small product in the same way without it
    case Group::checks:
      return false;
  }
  return false;
}

// The text after "unseen:" in the note.
std::string reason_in(const std::string& note) {
  static constexpr std::string_view mark = "unseen:";
  const std::size_t at = note.find(mark);
  if (at == std::string::npos) return {};
  const std::size_t begin = note.find_first_not_of(' ', at + mark.size());
  return begin == std::string::npos ? std::string() : note.substr(begin);
}

template <class Wanted>
bool any_step(const Steps& steps, const Wanted& wanted) {
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
    return wanted(step) || any_step(step.steps, wanted) || any_step(step.otherwise, wanted) ||
           std::any_of(step.among.begin(), step.among.end(),
                       [&](const scenario::Branch& branch) { return any_step(branch.steps, wanted); }) ||
           (step.routine && any_step(step.routine->steps, wanted));
  });
}

bool is_check(const Step& step) { return scenario::spec_of(step.verb).group == Group::checks; }

bool brings_feature(const Step& step) {
  if (step.raises || !brings_feature(step.verb)) return false;
  // A routine that checks its own steps is a test. Without it nothing is left to be noticed.
  if (step.verb == Verb::use) return !any_step(step.routine->steps, is_check);
  if (step.verb != Verb::hook) return true;
  return any_step(step.steps, [](const Step& inner) { return inner.verb != Verb::delay; });
}

void add_feature_steps(const Steps& steps, std::vector<FeatureStep>& found) {
  for (const Step& step : steps) {
    if (brings_feature(step))
      found.push_back({step.verb, step.place, reason_in(step.note), step.verb == Verb::summon_full_parameters});
    add_feature_steps(step.steps, found);
    add_feature_steps(step.otherwise, found);
    for (const scenario::Branch& branch : step.among) add_feature_steps(branch.steps, found);
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The column of the first character that is not blank, from 0; npos for a blank line.
std::size_t indentation(const std::string& line) { return line.find_first_not_of(" \t"); }

bool is_content(const std::string& line) {
  const std::size_t at = indentation(line);
  return at != std::string::npos && line[at] != '#';
}

}  // namespace

std::vector<FeatureStep> feature_steps(const scenario::Scenario& scenario) {
  std::vector<FeatureStep> found;
  for (const scenario::Stage& stage : scenario.stages) add_feature_steps(stage.steps, found);
  return found;
}

std::string without_step(const std::string& text, const FeatureStep& step) {
  std::vector<std::string> lines = lines_of(text);
  // The keys of an item stand two columns behind its dash, which may be on the line of an earlier key.
  if (step.place.column < 3 || step.place.line < 1 || step.place.line > std::ssize(lines)) return {};
  const auto key = static_cast<std::size_t>(step.place.column - 1);
  const std::size_t dash = key - 2;
  std::size_t first = static_cast<std::size_t>(step.place.line - 1);
  if (lines[first].substr(0, key).find_first_not_of(" -") != std::string::npos) return {};
  while (indentation(lines[first]) != dash || lines[first].compare(dash, 2, "- ") != 0) {
    const std::size_t at = indentation(lines[first]);
    if (first == 0 || (is_content(lines[first]) && at < key)) return {};
    --first;
  }
  if (step.keeps_steps) {
    first = static_cast<std::size_t>(step.place.line - 1);
    lines[first] = lines[first].substr(0, key) + "if: rank >= 0";
  } else {
    lines[first] = std::string(dash, ' ') + "- let: {left_out: 0}";
  }
  const std::size_t inside = step.keeps_steps ? key : dash;  // the lines of the verb, or of the step
  for (std::size_t i = first + 1; i < lines.size(); ++i) {
    if (is_content(lines[i]) && indentation(lines[i]) <= inside) break;
    lines[i].clear();
  }
  std::string changed;
  for (const std::string& line : lines) changed += line + "\n";
  return changed;
}

}  // namespace lockstep::cli
