#include "harness/run/step_blocks.hpp"

#include <algorithm>

namespace lockstep::run {

using scenario::Step;
using scenario::Steps;

std::vector<const Steps*> blocks_of(const Step& step) {
  std::vector<const Steps*> blocks = {&step.steps, &step.otherwise};
  for (const scenario::Branch& branch : step.among) blocks.push_back(&branch.steps);
  return blocks;
}

std::vector<const Steps*> blocks_and_routine_of(const Step& step) {
  std::vector<const Steps*> blocks = blocks_of(step);
  if (step.routine) blocks.push_back(&step.routine->steps);
  return blocks;
}

bool any_step(const Steps& steps, const std::function<bool(const Step&)>& predicate) {
  return std::any_of(steps.begin(), steps.end(), [&predicate](const Step& step) {
    if (predicate(step)) return true;
    const std::vector<const Steps*> blocks = blocks_and_routine_of(step);
    return std::any_of(blocks.begin(), blocks.end(),
                       [&predicate](const Steps* block) { return any_step(*block, predicate); });
  });
}

}  // namespace lockstep::run
