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
    case Group::set_up:
      return verb == Verb::exact_products;
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

void add_feature_steps(const Steps& steps, std::vector<FeatureStep>& found) {
  for (const Step& step : steps) {
    if (brings_feature(step.verb) && !step.raises) found.push_back({step.verb, step.place, reason_in(step.note)});
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
    if (first == 0 || (at != std::string::npos && at < key)) return {};
    --first;
  }
  std::size_t last = first + 1;
  while (last < lines.size() && (indentation(lines[last]) == std::string::npos || indentation(lines[last]) > dash))
    ++last;
  lines[first] = std::string(dash, ' ') + "- let: {left_out: 0}";
  for (std::size_t i = first + 1; i < last; ++i) lines[i].clear();
  std::string changed;
  for (const std::string& line : lines) changed += line + "\n";
  return changed;
}

}  // namespace lockstep::cli
