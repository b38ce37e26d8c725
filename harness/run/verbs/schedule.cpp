// Learning rates during training: the verb set_lr, and the functions schedule and learning_rates.
#include "engine/optim/schedule.hpp"

#include "harness/run/values/functions.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

namespace verbs {

Value set_lr(StepCall& call) {
  std::optional<std::size_t> group;
  if (call.has("group")) {
    const std::int64_t index = call.integer("group");
    if (index < 0) throw Error(str("`group` is ", index), "the first group is 0");
    group = static_cast<std::size_t>(index);
  }
  optim::set_lr(*call.value("optimizer").as_optimizer("optimizer"), call.number("to"), group);
  return Value();
}

}  // namespace verbs

namespace functions {

Value schedule(const CallArguments& call) {
  optim::Schedule schedule;
  schedule.shape = optim::schedule_shape(call.at(0, "shape").as_text("shape"));
  const auto integer = [&](const char* key, std::int64_t& to) {
    if (const Value* value = call.keyword(key)) to = value->as_int(key);
  };
  const auto number = [&](const char* key, double& to) {
    if (const Value* value = call.keyword(key)) to = value->as_number(key);
  };
  integer("steps", schedule.steps);
  integer("warm_up", schedule.warm_up);
  number("last", schedule.last);
  integer("every", schedule.every);
  number("factor", schedule.factor);
  return Value(optim::schedule_factor(schedule, call.integer(1, "step")));
}

Value learning_rates(const CallArguments& call) {
  List rates;
  for (const double rate : optim::learning_rates(*call.at(0, "optimizer").as_optimizer("optimizer")))
    rates.push_back(Value(rate));
  return Value::list(std::move(rates));
}

}  // namespace functions

}  // namespace lockstep::run
