#include "engine/optim/schedule.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<double> factors(const Schedule& schedule, std::int64_t count) {
  std::vector<double> result;
  for (std::int64_t step = 0; step < count; ++step) result.push_back(schedule_factor(schedule, step));
  return result;
}

TEST(Schedule, MatchesItsFormulas) {
  Schedule schedule;
  EXPECT_THAT(factors(schedule, 3), ElementsAre(1.0, 1.0, 1.0));
  schedule.shape = ScheduleShape::step;
  schedule.every = 2;
  schedule.factor = 0.5;
  EXPECT_THAT(factors(schedule, 5), ElementsAre(1.0, 1.0, 0.5, 0.5, 0.25));
  schedule.shape = ScheduleShape::linear;
  schedule.steps = 4;
  schedule.last = 0.5;
  EXPECT_THAT(factors(schedule, 6), ElementsAre(1.0, 0.875, 0.75, 0.625, 0.5, 0.5));
  schedule.shape = ScheduleShape::cosine;
  schedule.last = 0.0;
  const double diagonal = std::sqrt(0.5);
  EXPECT_THAT(factors(schedule, 6), Pointwise(DoubleNear(1e-15), std::vector<double>{1.0, (1 + diagonal) / 2, 0.5,
                                                                                     (1 - diagonal) / 2, 0.0, 0.0}));
}

TEST(Schedule, WarmsUpFirst) {
  Schedule schedule;
  schedule.warm_up = 3;
  EXPECT_THAT(factors(schedule, 5), ElementsAre(0.25, 0.5, 0.75, 1.0, 1.0));
  schedule.shape = ScheduleShape::linear;
  schedule.steps = 5;
  EXPECT_THAT(factors(schedule, 7), ElementsAre(0.25, 0.5, 0.75, 1.0, 0.5, 0.0, 0.0));
}

std::string error_of(const Schedule& schedule, std::int64_t step) {
  try {
    schedule_factor(schedule, step);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Schedule, RejectsValuesOutOfRange) {
  EXPECT_THAT(error_of({}, -1), HasSubstr("the step is -1"));
  EXPECT_THAT(error_of({.shape = ScheduleShape::cosine}, 0), HasSubstr("steps is 0"));
  EXPECT_THAT(error_of({.shape = ScheduleShape::linear, .steps = 5, .warm_up = 5}, 0), HasSubstr("more than warm_up"));
  EXPECT_THAT(error_of({.warm_up = -1}, 0), HasSubstr("warm_up is -1"));
  EXPECT_THAT(error_of({.every = 0}, 0), HasSubstr("every is 0"));
  EXPECT_THROW(schedule_shape("sawtooth"), Error);
  EXPECT_EQ(schedule_shape("cosine"), ScheduleShape::cosine);
}

TEST(SetLr, ChangesTheNextStep) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const auto parameter = [](double value) {
    Tensor tensor = full({2}, value, DType::float32, {});
    set_requires_grad(tensor, true);
    set_grad(tensor, full({2}, 1.0, DType::float32, {}));
    return tensor;
  };
  const Tensor a = parameter(1.0), b = parameter(1.0);
  const auto sgd =
      make_optimizer("SGD", {{{{"a", [a] { return a; }}}, {.lr = 0.5}}, {{{"b", [b] { return b; }}}, {.lr = 0.25}}});
  EXPECT_THAT(learning_rates(*sgd), ElementsAre(0.5, 0.25));
  set_lr(*sgd, 0.125, 1);
  EXPECT_THAT(learning_rates(*sgd), ElementsAre(0.5, 0.125));
  sgd->step();
  EXPECT_THAT(to_doubles(a), ElementsAre(0.5, 0.5));
  EXPECT_THAT(to_doubles(b), ElementsAre(0.875, 0.875));
  set_lr(*sgd, 0.25);
  sgd->step();
  EXPECT_THAT(to_doubles(a), ElementsAre(0.25, 0.25));
  EXPECT_THAT(to_doubles(b), ElementsAre(0.625, 0.625));
  EXPECT_THROW(set_lr(*sgd, 0.1, 2), Error);
  EXPECT_THROW(set_lr(*sgd, -0.1), Error);
  EXPECT_THROW(set_lr(*sgd, NAN), Error);
}

}  // namespace
}  // namespace lockstep::optim
