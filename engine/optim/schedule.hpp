// Learning rate schedules. A schedule is a plain function of the step, without state to save. A resumed run continues
// with the step that its caller passes.
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
ScheduleShape schedule_shape(std::string_view name);  // throws Error for an unknown name

struct Schedule {
  ScheduleShape shape = ScheduleShape::constant;
  std::int64_t steps = 0;    // linear, cosine: number of training steps, including the warm-up
  std::int64_t warm_up = 0;  // number of warm-up steps
  double last = 0.0;         // linear, cosine: the factor from `steps` on
  std::int64_t every = 1;    // step: number of steps after which the factor is multiplied by `factor`
  double factor = 0.1;       // step
};

// The factor of the learning rate at a step, counted from 0. During the warm-up it is (step + 1) / (warm_up + 1). After
// it, with n = steps - warm_up and t the number of steps since the warm-up, at most n:
//   constant: 1;  step: factor^(t / every), rounded down;  linear: 1 + (last - 1) t / n;
//   cosine: last + (1 - last) (1 + cos(pi t / n)) / 2.
// Throws Error for a step below 0 and for settings out of range.
double schedule_factor(const Schedule& schedule, std::int64_t step);

// Sets the learning rate of all groups, or of one. Throws Error for a rate that is below 0 or not finite, and for an
// unknown group.
void set_lr(Optimizer& optimizer, double lr, std::optional<std::size_t> group = std::nullopt);
std::vector<double> learning_rates(Optimizer& optimizer);  // one per group

}  // namespace lockstep::optim
