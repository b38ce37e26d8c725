// The text of a scenario with one step left out: a change that a check must notice.
//
//   for (const FeatureStep& step : feature_steps(*scenario))
//     run(library.load_text(without_step(text, step), scenario->file));
//
// Pure functions. A step brings a feature if its verb applies a parallel API, trains, communicates, changes a model or
// a state, or injects a fault. Steps that compute names (let), choose, check or observe bring none by themselves. A
// delay brings none either, nor does a hook of delays, because results must not depend on time. A routine that contains
// checks is a test of its own.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::cli {

struct FeatureStep {
  scenario::Verb verb = scenario::Verb::seed;
  scenario::Place place;     // of the verb
  std::string reason;        // after "unseen:" in the step's note: why no check can notice its absence; empty: none
  bool keeps_steps = false;  // the verb is left out, and its steps run without it
};

// The steps that bring a feature, in the order of the file, those in blocks included. Steps of routines are not among
// them: the step `use` is.
std::vector<FeatureStep> feature_steps(const scenario::Scenario& scenario);

// The text of the scenario with a `let` of an unused name in the place of the step, so that blocks keep a step and
// lines their numbers; with keeps_steps, with an `if` that always holds in the place of the verb. Empty if the step is
// written in a form that this does not read: on one line with others, as `steps: [...]`.
std::string without_step(const std::string& text, const FeatureStep& step);

}  // namespace lockstep::cli
