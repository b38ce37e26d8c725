// Programs, their trees and their texts.
#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/fuzz/corpus.hpp"
#include "harness/fuzz/grammar.hpp"
#include "harness/fuzz/judge.hpp"
#include "harness/fuzz/render.hpp"
#include "harness/fuzz/shrink.hpp"
#include "harness/scenario/library.hpp"

namespace lockstep::fuzz {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The first numbers of splitmix64 with seed 1234567, as its author publishes them.
TEST(Random, GivesTheNumbersOfSplitmix64) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ull);
  EXPECT_EQ(random.next(), 3203168211198807973ull);
  EXPECT_EQ(random.next(), 9817491932198370423ull);
}

TEST(Random, NoTwoSeedsShareAProgram) {
  std::set<std::uint64_t> drawn;
  for (std::uint64_t seed = 0; seed < 40; ++seed)
    for (std::uint64_t index = 0; index < 40; ++index) drawn.insert(program_seed(seed, index));
  EXPECT_EQ(drawn.size(), 1600u);
}

TEST(Chooser, TakesTheSimplestAlternativeWhereATreeSaysNothing) {
  Derivation tree;
  Chooser choose(tree);
  EXPECT_EQ(choose.pick("kind", {1, 98, 1}), 0);
  EXPECT_EQ(choose.number("width", 3, 9), 3);
  EXPECT_FALSE(choose.chance("flag", 99));
  EXPECT_EQ(choose.items("list", 2, 5).size(), 2u);
  EXPECT_EQ(tree.size(), 2) << "the two items";
}

TEST(Chooser, RepeatsWhatItDrew) {
  Derivation tree;
  Random random(3);
  Chooser drawn(tree, &random);
  const int kind = drawn.pick("kind", {1, 1, 1, 1, 1, 1, 1, 1});
  const auto width = drawn.number("width", 10, 1000);
  const std::size_t length = drawn.items("list", 0, 50).size();
  Chooser again(tree);
  EXPECT_EQ(again.pick("kind", {1, 1, 1, 1, 1, 1, 1, 1}), kind);
  EXPECT_EQ(again.number("width", 10, 1000), width);
  EXPECT_EQ(again.items("list", 0, 50).size(), length);
  EXPECT_EQ(again.pick("kind", {1, 1}), kind < 2 ? kind : 0) << "an alternative that is gone counts as the simplest";
}

TEST(Chooser, NeverPicksAnAlternativeWithoutWeight) {
  Random random(11);
  for (int i = 0; i < 200; ++i) {
    Derivation tree;
    EXPECT_EQ(Chooser(tree, &random).pick("kind", {0, 1, 0}), 1);
  }
}

TEST(Chooser, ARecordedAlternativeWithoutWeightCountsAsTheSimplest) {
  Derivation tree;
  tree.fields["kind"].value = 2;
  EXPECT_EQ(Chooser(tree).pick("kind", {1, 1, 1}), 2);
  EXPECT_EQ(Chooser(tree).pick("kind", {1, 1, 0}), 0);
}

TEST(Grammar, TheSimplestProgramIsSmall) {
  Derivation none;
  const Program program = derive(1, 0, none);
  EXPECT_TRUE(promises_bits(program));
  const std::string text = render(program).yaml;
  EXPECT_THAT(text, HasSubstr("Linear(4, 4)"));
  EXPECT_THAT(text, HasSubstr("fully_shard: test\n"));
  EXPECT_THAT(text, Not(HasSubstr("replicated")));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 32);
}

TEST(Grammar, AForwardLeavesTheRootAloneUnsharded) {
  Program program;
  program.model.build = "Sequential(Linear(4, 4), Linear(4, 4))";
  program.model.units = {{.path = "0", .type = "Linear"}, {.path = "1", .type = "Linear"}};
  program.model.input = "randn(rows, 4)";
  program.parallel.data_ranks = 2;
  program.parallel.groups = {
      {.modules = {"0"}, .reshard = ""}, {.modules = {"1"}, .reshard = "false"}, {.modules = {""}, .reshard = ""}};
  program.steps = {Step{}};
  const char* groups = "if (false if starts_with(p.name, '0.') else true if starts_with(p.name, '1.') else true)";
  EXPECT_THAT(render(program).yaml, HasSubstr(groups));
  program.parallel.prefetches = {{.module = "1", .ahead = "0"}};
  EXPECT_THAT(render(program).yaml, Not(HasSubstr("<= sum"))) << "a group may be gathered again";
  program.parallel.prefetches.clear();
  program.parallel.groups = {{.modules = {"0", "1"}, .reshard = ""}, {.modules = {""}, .reshard = ""}};
  EXPECT_THAT(render(program).yaml, HasSubstr("<= sum"));
  program.model.units[1].is_used = false;
  EXPECT_THAT(render(program).yaml, Not(HasSubstr("<= sum"))) << "the group waits for its second module";
}

// The statistics of the rank alone are those of all batches; a replicated rank sees its own, as a sharded one does.
TEST(Grammar, ModelsWithBuffersCompareThemBesideReplicatedRanks) {
  Program program;
  program.model.build = "Sequential(BatchNorm(4))";
  program.model.units = {{.path = "0", .type = "BatchNorm"}};
  program.model.input = "randn(rows, 4)";
  program.model.has_buffers = true;
  program.parallel.groups = {{.modules = {""}, .reshard = ""}};
  program.steps = {Step{}};
  program.beside_replicated = true;
  const char* buffers = "actual: buffers(test), expected: buffers(replicated)";
  EXPECT_THAT(render(program).yaml, HasSubstr(buffers));
  EXPECT_THAT(render(program).yaml, Not(HasSubstr("{actual: test, expected: alone")));
  program.checkpoints = {{"0", "wrapper"}};
  EXPECT_THAT(render(program).yaml, Not(HasSubstr(buffers))) << "a recomputation updates them again";
}

TEST(Grammar, TensorParallelProgramsHaveNoLayerNormOfTwoValues) {
  for (std::uint64_t index = 0; index < 2000; ++index) {
    Derivation tree;
    const Program program = program_of(7, index, tree);
    if (program.parallel.api != Api::tensor_parallel) continue;
    EXPECT_THAT(program.model.build, Not(HasSubstr("LayerNorm(2)"))) << "program " << index;
  }
}

TEST(Grammar, ProgramsWithGradientsOfRoundingPromiseBits) {
  int count = 0;
  for (std::uint64_t index = 0; index < 2000; ++index) {
    Derivation tree;
    const Program program = program_of(7, index, tree);
    const std::string& build = program.model.build;
    for (const char* norm : {"BatchNorm", "Image", "LayerNorm(2)"}) {
      if (build.find(norm) == std::string::npos) continue;
      ++count;
      EXPECT_TRUE(promises_bits(program)) << "program " << index << ": " << build;
    }
  }
  EXPECT_GT(count, 100);
}

TEST(Grammar, ATreeDerivesItsProgramAgain) {
  for (std::uint64_t index = 0; index < 300; ++index) {
    Derivation tree;
    const std::string text = render(program_of(5, index, tree)).yaml;
    const int size = tree.size();
    EXPECT_EQ(render(derive(5, index, tree)).yaml, text) << "program " << index;
    EXPECT_EQ(tree.size(), size);
    Derivation other;
    EXPECT_EQ(render(program_of(5, index, other)).yaml, text) << "program " << index;
  }
}

TEST(Grammar, ProgramsDiffer) {
  std::set<std::string> texts;
  for (std::uint64_t index = 0; index < 300; ++index) {
    Derivation tree;
    Program program = program_of(5, index, tree);
    program.index = 0;
    program.value_seed = 1;
    texts.insert(render(program).yaml);
  }
  EXPECT_GT(texts.size(), 290u);
}

TEST(Grammar, TheLanguageAcceptsEveryProgram) {
  scenario::Library library(std::string(LOCKSTEP_SOURCE_DIR) + "/scenarios");
  for (std::uint64_t index = 0; index < 300; ++index) {
    Derivation tree;
    const Program program = program_of(6, index, tree);
    for (const bool for_peer : {false, true}) {
      const std::string text = render(program, for_peer).yaml;
      EXPECT_NO_THROW(library.load_text(text, "program.yaml")) << text;
    }
  }
}

// The choices of the other blocks stay when a block is removed.
TEST(Shrink, RemovesBlocksWithTheirChoices) {
  Derivation tree;
  const auto has_mlp = [](const Program& program) {
    for (const Unit& unit : program.model.units)
      if (unit.type == "MLP") return true;
    return false;
  };
  std::uint64_t index = 0;
  Program found = program_of(2, index++, tree);
  while (!has_mlp(found) || found.model.build.find(", ") == std::string::npos) {
    tree = {};
    found = program_of(2, index++, tree);
  }
  int num_runs = 0;
  Derivation small = shrink(tree, 300, [&](Derivation& candidate) {
    ++num_runs;
    return has_mlp(derive(2, index - 1, candidate));
  });
  const Program program = derive(2, index - 1, small);
  EXPECT_EQ(program.model.build, "Sequential(MLP(4, mult=2))");
  EXPECT_EQ(program.steps.size(), 1u);
  EXPECT_EQ(small.size(), 4) << "the block, its kind, the step and its microbatch";
  EXPECT_LE(num_runs, 300);
}

TEST(Shrink, KeepsTwoChoicesThatFailTogether) {
  std::uint64_t index = 0;
  Derivation tree;
  const auto fails = [](const Program& program) {
    return !program.checkpoints.empty() && program.optimizer.type == "AdamW" && program.steps.size() > 1;
  };
  while (!fails(program_of(4, index, tree = {}))) ++index;
  Derivation small = shrink(tree, 400, [&](Derivation& candidate) { return fails(derive(4, index, candidate)); });
  const Program program = derive(4, index, small);
  EXPECT_EQ(program.checkpoints.size(), 1u);
  EXPECT_EQ(program.optimizer.type, "AdamW");
  EXPECT_EQ(program.steps.size(), 2u);
  EXPECT_EQ(program.steps[0].microbatches.size(), 1u);
  EXPECT_EQ(program.launch, "thread");
}

TEST(Shrink, StopsAfterItsRuns) {
  Derivation tree;
  program_of(4, 1, tree);
  int num_runs = 0;
  const Derivation same = shrink(tree, 7, [&](Derivation&) { return ++num_runs, false; });
  EXPECT_EQ(num_runs, 7);
  EXPECT_EQ(same.size(), tree.size());
}

TEST(Corpus, KeepsTheTreesWithNewPairs) {
  std::vector<Derivation> trees(3);
  trees[0].fields["a"].value = 1;
  trees[0].fields["b"].value = 1;
  trees[1] = trees[0];
  trees[2] = trees[0];
  trees[2].fields["c"].value = 1;
  EXPECT_THAT(with_most_pairs(trees, 3), ElementsAre(2)) << "its pairs contain those of the others";
  trees[1].fields["d"].value = 2;
  EXPECT_THAT(with_most_pairs(trees, 3), ElementsAre(1, 2));
}

TEST(Judge, ARefusalIsAnErrorWhileTheProgramIsBuilt) {
  verdict::CaseResult row;
  row.status = verdict::Status::PASS;
  EXPECT_EQ(outcome_of(row), Outcome::agrees);
  row.status = verdict::Status::FAIL;
  row.failure.emplace();
  row.failure->check = "fully_shard";
  row.failure->message = "fully_shard: `test.3` has 12 rows";
  EXPECT_EQ(outcome_of(row), Outcome::refused);
  EXPECT_EQ(kind_of_refusal(row), "fully_shard: fully_shard: ` has N rows");
  row.failure->check = "backward";
  EXPECT_EQ(outcome_of(row), Outcome::disagrees);
  EXPECT_EQ(signature_of(row), "FAIL backward");
  row.status = verdict::Status::HANG;
  row.failure->check = "fully_shard";
  EXPECT_EQ(outcome_of(row), Outcome::disagrees) << "a hang is never a refusal";
}

}  // namespace
}  // namespace lockstep::fuzz
