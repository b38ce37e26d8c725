// Learning rates over the course of training. A schedule is a plain function of the step: nothing follows it by itself,
// so there is no state to save and a run that is resumed goes on with the step it is told.
//
//   set_lr(*adam, 0.01 * schedule_factor({.shape = ScheduleShape::cosine, .steps = 1000, .warm_up = 50}, step));
//   adam->step();
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

enum class ScheduleShape : std::uint8_t { constant, step, linear, cosine };
ScheduleShape schedule_shape(std::string_view name);  // throws Error for an unknown one

struct Schedule {
  ScheduleShape shape = ScheduleShape::constant;
  std::int64_t steps = 0;    // of the whole training, warm-up included; linear and cosine need it
  std::int64_t warm_up = 0;  // steps on the way up
  double last = 0.0;         // the factor at `steps` and after it, of linear and cosine
  std::int64_t every = 1;    // of step: so many steps, and the factor
  double factor = 0.1;       // is multiplied by this
};

// What to multiply the learning rate by at a step, counted from 0. During the warm-up (step + 1) / (warm_up + 1); then,
// where t counts the steps since and n = steps - warm_up, at most n:
//   constant: 1;  step: factor^(t / every), rounded down;  linear: 1 + (last - 1) t / n;
//   cosine: last + (1 - last) (1 + cos(pi t / n)) / 2.
// Throws Error for a step below 0 and for settings out of range.
double schedule_factor(const Schedule& schedule, std::int64_t step);

// The learning rate of every group, or of one. Throws Error for a rate below 0, not finite, or a group that there is
// not.
void set_lr(Optimizer& optimizer, double lr, std::optional<std::size_t> group = std::nullopt);
std::vector<double> learning_rates(Optimizer& optimizer);  // a group each

}  // namespace lockstep::optim
