#include "engine/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/core/error.hpp"

namespace lockstep::optim {

namespace {

void require(bool holds, const char* option, double value, const char* range) {
  if (!holds) throw Error(str("schedule: ", option, " is ", value), str("it must be ", range));
}

}  // namespace

ScheduleShape schedule_shape(std::string_view name) {
  if (name == "constant") return ScheduleShape::constant;
  if (name == "step") return ScheduleShape::step;
  if (name == "linear") return ScheduleShape::linear;
  if (name == "cosine") return ScheduleShape::cosine;
  throw Error(str("there is no schedule `", name, "`"), "use constant, step, linear or cosine");
}

double schedule_factor(const Schedule& schedule, std::int64_t step) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  require(step >= 0, "the step", number(step), "0 or more");
  require(schedule.warm_up >= 0, "warm_up", number(schedule.warm_up), "0 or more");
  require(std::isfinite(schedule.last) && schedule.last >= 0, "last", schedule.last, "0 or more");
  require(schedule.every >= 1, "every", number(schedule.every), "1 or more");
  require(std::isfinite(schedule.factor) && schedule.factor >= 0, "factor", schedule.factor, "0 or more");
  const bool has_end = schedule.shape == ScheduleShape::linear || schedule.shape == ScheduleShape::cosine;
  if (has_end) require(schedule.steps > schedule.warm_up, "steps", number(schedule.steps), "more than warm_up");
  if (step < schedule.warm_up) return (number(step) + 1) / (number(schedule.warm_up) + 1);
  const std::int64_t since = step - schedule.warm_up;
  const double progress =
      has_end ? number(std::min(since, schedule.steps - schedule.warm_up)) / number(schedule.steps - schedule.warm_up)
              : 0.0;
  switch (schedule.shape) {
    case ScheduleShape::constant:
      return 1.0;
    case ScheduleShape::step:
      return std::pow(schedule.factor, number(since / schedule.every));
    case ScheduleShape::linear:
      return 1.0 + (schedule.last - 1.0) * progress;
    case ScheduleShape::cosine:
      return schedule.last + (1.0 - schedule.last) * (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  }
  LOCKSTEP_CHECK(false, "a schedule of no shape");
}

void set_lr(Optimizer& optimizer, double lr, std::optional<std::size_t> group) {
  if (!std::isfinite(lr) || lr < 0)
    throw Error(str("set_lr of ", optimizer.type(), ": the learning rate is ", lr), "it must be 0 or more, and finite");
  std::vector<Group>& groups = optimizer.groups();
  if (group.value_or(0) >= groups.size())
    throw Error(str("set_lr of ", optimizer.type(), ": there is no group ", group.value_or(0)),
                str("groups count from 0; the optimizer has ", groups.size()));
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (!group || *group == i) groups[i].options.lr = lr;
}

std::vector<double> learning_rates(Optimizer& optimizer) {
  std::vector<double> rates;
  for (const Group& group : optimizer.groups()) rates.push_back(group.options.lr);
  return rates;
}

}  // namespace lockstep::optim
