// Programs that change values in place, and what they must not change.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/fuzz/grammar.hpp"
#include "harness/fuzz/render.hpp"
#include "harness/fuzz/test_support.hpp"

namespace lockstep::fuzz {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::small_program;

std::vector<Program> programs(std::uint64_t seed, std::uint64_t count) {
  std::vector<Program> all;
  for (std::uint64_t index = 0; index < count; ++index) {
    Derivation tree;
    all.push_back(program_of(seed, index, tree));
  }
  return all;
}

TEST(Forward, EveryFunctionThatChangesItsTensorOccurs) {
  std::map<std::string, int> counts;
  for (const Program& program : programs(3, 1500))
    for (const Written& model : program.model.written)
      for (const auto& [name, text] : model.statements) ++counts[text.substr(0, text.find('('))];
  for (const char* function : {"add_", "sub_", "mul_", "div_", "relu_", "fill_", "zero_", "copy_"})
    EXPECT_GT(counts[function], 5) << function;
}

// The gradient of the sharded output passes through its local shard.
TEST(Forward, TheOutputOfATensorParallelChildIsNotChanged) {
  int num_models = 0;
  for (const Program& program : programs(4, 2000)) {
    if (program.parallel.api != Api::tensor_parallel) continue;
    for (const Written& model : program.model.written) {
      ++num_models;
      const std::string& next = model.statements.at(1).second;
      EXPECT_EQ(next.find("_("), std::string::npos) << next;
    }
  }
  EXPECT_GT(num_models, 20);
}

TEST(Forward, AChildThatIsCalledAgainIsKnown) {
  for (const Program& program : programs(5, 800))
    for (const Unit& unit : program.model.units)
      for (const Written& model : program.model.written) {
        if (unit.path != model.name.substr(7) + ".inner") continue;
        const auto calls = std::count_if(model.statements.begin(), model.statements.end(),
                                         [](const auto& statement) { return statement.second.starts_with("inner("); });
        EXPECT_EQ(unit.runs_again, calls > 1) << model.name << " of program " << program.index;
      }
}

TEST(Changes, AreTheSameInEveryModel) {
  Program program = small_program();
  program.beside_replicated = program.may_be_replicated = true;
  program.steps[0].of_gradients = {{.kind = Change::shifted, .child = "0", .in_hook = false, .in_full = false}};
  const std::string text = render(program).yaml;
  for (const char* model : {"test", "alone", "replicated"})
    EXPECT_THAT(
        text, HasSubstr(std::string("[add_(p.grad, 0.0625) for p in parameters(") + model + ".0) if p.grad != none]"));
}

TEST(Changes, AHookChangesInItsStepOnly) {
  Program program = small_program();
  program.steps.resize(2);
  program.steps[0].of_parameters = {{.kind = Change::scaled, .child = "", .in_hook = true, .in_full = false}};
  const std::string text = render(program).yaml;
  EXPECT_THAT(text, HasSubstr("when: \"now == 0\""));
  EXPECT_THAT(text, HasSubstr("let: {now: 0}"));
  EXPECT_THAT(text, HasSubstr("let: {now: 1}"));
}

TEST(Changes, ASkippedStepIsSkippedInEveryModel) {
  Program program = small_program();
  program.is_scaled = true;
  program.steps[0].overflows = true;
  const std::string text = render(program).yaml;
  EXPECT_THAT(text, HasSubstr("(inf if rank == 1 else 0)"));
  EXPECT_THAT(text, HasSubstr("is_done == false"));
  EXPECT_THAT(text, Not(HasSubstr("step: alone_optimizer")));
}

TEST(Changes, AStaleModelIsExpectedToFail) {
  Derivation tree;
  Program program = small_program();
  program.stale = derive_stale_forward(Chooser(tree));
  EXPECT_THAT(render(program).yaml, HasSubstr("raises: was changed in place"));
  EXPECT_THAT(program.stale->statements.at(1).second, HasSubstr("tanh(h0)"));
  EXPECT_THAT(program.stale->statements.at(2).second, HasSubstr("mul_(h1, 0.5)"));
}

}  // namespace
}  // namespace lockstep::fuzz
