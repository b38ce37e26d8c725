// Programs whose training is interrupted: the steps that the grammar derives for each model.
#include <algorithm>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/fuzz/grammar.hpp"
#include "harness/fuzz/render.hpp"
#include "harness/fuzz/test_support.hpp"

namespace lockstep::fuzz {
namespace {

using ::testing::HasSubstr;
using testing_support::small_program;

std::string after(const std::string& text, const std::string& first) { return text.substr(text.find(first)); }

TEST(Interruptions, EachKindOccurs) {
  std::map<std::string, int> counts;
  for (std::uint64_t index = 0; index < 1500; ++index) {
    Derivation tree;
    const Program program = program_of(3, index, tree);
    counts["side model"] += program.side.has_value();
    counts["late ties"] += program.ties_late;
    for (const Step& step : program.steps) {
      counts["late freeze"] += !step.frozen_late.empty();
      counts["nested"] += step.is_nested;
      for (const Microbatch& microbatch : step.microbatches) {
        counts["evaluation between"] += microbatch.evaluates_between;
        ++counts["kind " + std::to_string(microbatch.before.kind)];
      }
    }
  }
  for (const char* feature : {"side model", "late ties", "late freeze", "nested", "evaluation between", "kind 1",
                              "kind 2", "kind 3", "kind 4"})
    EXPECT_GT(counts[feature], 10) << feature;
}

TEST(Interruptions, AFailedBackwardBeginsWithoutGradientsAndLeavesNone) {
  for (std::uint64_t index = 0; index < 1500; ++index) {
    Derivation tree;
    const Program program = program_of(4, index, tree);
    for (std::size_t i = 0; i < program.steps.size(); ++i)
      for (std::size_t k = 0; k < program.steps[i].microbatches.size(); ++k) {
        const Microbatch& microbatch = program.steps[i].microbatches[k];
        if (microbatch.before.kind != Interruption::failed_backward) continue;
        EXPECT_EQ(k, 0u) << "program " << index;
        EXPECT_FALSE(has_flags(microbatch)) << "program " << index;
        EXPECT_TRUE(i == 0 || program.steps[i - 1].clear == Clear::to_none) << "program " << index;
      }
  }
  Program program = small_program();
  program.steps[0].microbatches[0].before = {.kind = Interruption::failed_backward, .module = "0", .fails_after = true};
  const std::string text = render(program).yaml;
  EXPECT_THAT(text, HasSubstr("hook: {modules: test.0, at: after_backward}"));
  EXPECT_THAT(after(text, "backward: lost"), HasSubstr("zero_grad: test_optimizer"));
}

TEST(Interruptions, AFailedForwardFailsOnce) {
  Program program = small_program();
  program.steps.resize(2);
  program.steps[1].microbatches[0].before = {.kind = Interruption::failed_forward, .module = "0", .fails_after = false};
  const std::string text = render(program).yaml;
  EXPECT_THAT(text, HasSubstr("failing == 'before_forward of 0'"));
  EXPECT_THAT(after(text, "raises"), HasSubstr("let: {failing: \"''\"}"));
  EXPECT_THAT(text, HasSubstr("unplanned: "));
}

// The plain model gives no gradient to a parameter that is frozen by then.
TEST(Interruptions, ALateFreezeOfTheOtherModelsFollowsTheirBackward) {
  Program program = small_program();
  program.steps[0].frozen_late = "0";
  const std::string text = render(program).yaml;
  EXPECT_LT(text.find("set_requires_grad: {parameters: test.0.**, to: false}"), text.find("backward: loss_0"));
  EXPECT_LT(text.find("use: alone_on_one_rank"), text.find("set_requires_grad: {parameters: alone.0.**, to: false}"));
}

TEST(Interruptions, NestedBackwardsComeInTheOppositeOrder) {
  Program program = small_program();
  program.steps[0].microbatches.resize(2);
  program.steps[0].is_nested = true;
  const std::string text = render(program).yaml;
  EXPECT_LT(text.find("y_1: "), text.find("backward: loss_1"));
  EXPECT_LT(text.find("backward: loss_1"), text.find("backward: loss_0"));
}

TEST(Interruptions, LateTiesFollowTheApisInEveryModel) {
  Program program = small_program();
  program.model.build = "Sequential(Linear(4, 4), Linear(4, 4))";
  program.model.ties = {{"1.weight", "0.weight"}};
  program.ties_late = true;
  const std::string text = render(program).yaml;
  EXPECT_LT(text.find("fully_shard: test"), text.find("parameter: test.1.weight, to: test.0.weight"));
  EXPECT_THAT(text, HasSubstr("parameter: alone.1.weight, to: alone.0.weight"));
}

}  // namespace
}  // namespace lockstep::fuzz
