#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/checkpoint_testing.hpp"
#include "engine/autograd/op_registry.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/core/defects.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using checkpoint_testing::Checkpoint;
using checkpoint_testing::error_of;
using checkpoint_testing::Tensors;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Counts = std::map<std::string, std::int64_t>;

// Two linear layers with dropout and a function whose derivative needs its input.
struct Block {
  Tensor first, second;
  Tensor operator()(const Tensors& in) const {
    const Tensor hidden = ops::gelu(ops::dropout(ops::linear(in[0], first, nullptr), 0.4));
    return ops::gelu(ops::dropout(ops::linear(hidden, second, nullptr), 0.4));
  }
};

class Selective : public Checkpoint {
 protected:
  Tensor x = drawn({6, 8});
  Block block{drawn({16, 8}), drawn({8, 16})};

  struct Run {
    std::vector<std::vector<double>> values;  // the result and all gradients
    Counts again;                             // the computations of backward
    bool operator==(const Run&) const = default;
  };
  Run run(const SavePolicyFunction& policy) {
    seed(5);
    const Tensor y = checkpoint(block, {x}, {.policy = policy});
    const Tensor loss = ops::sum(ops::mul(y, y));
    const ComputationCount count;
    backward({loss});
    return {{to_doubles(y), take_grad(x), take_grad(block.first), take_grad(block.second)}, count.counts()};
  }
  std::vector<std::vector<double>> plain() {
    seed(5);
    const Tensor y = block({x});
    backward({ops::sum(ops::mul(y, y))});
    return {to_doubles(y), take_grad(x), take_grad(block.first), take_grad(block.second)};
  }
};

TEST_F(Selective, ComputesSavedOperationsOnce) {
  const auto expected = plain();
  const Run all = run({}), linears = run(save_operations({{"linear"}})), drops = run(save_operations({{"dropout"}}));
  EXPECT_EQ(all.again, (Counts{{"linear", 2}, {"dropout", 2}, {"gelu", 2}}));
  EXPECT_EQ(linears.again, (Counts{{"dropout", 2}, {"gelu", 2}}));
  EXPECT_EQ(drops.again, (Counts{{"linear", 2}, {"gelu", 2}}));
  EXPECT_EQ(run(save_operations({{"linear"}, {"dropout"}, {"gelu"}})).again, Counts{});
  for (const Run& one : {all, linears, drops}) EXPECT_EQ(one.values, expected);
}

TEST_F(Selective, SavesTheFirstOfEverySoManyCalls) {
  const Run run = this->run(save_operations({{"linear", 2}, {"dropout", 3}}));
  EXPECT_EQ(run.again, (Counts{{"linear", 1}, {"dropout", 1}, {"gelu", 2}}));
  EXPECT_EQ(run.values, plain());
}

TEST_F(Selective, AsksThePolicyInTheForwardOnly) {
  std::vector<std::string> asked;
  const Run second = run([&](std::string_view name, std::int64_t call) {
    asked.push_back(str(name, " ", call));
    return name == "linear" && call == 1 ? SavePolicy::must_save : SavePolicy::prefer_recompute;
  });
  EXPECT_THAT(asked, testing::ElementsAre("linear 0", "dropout 0", "gelu 0", "linear 1", "dropout 1", "gelu 1"));
  EXPECT_EQ(second.again, (Counts{{"linear", 1}, {"dropout", 2}, {"gelu", 2}}));
  EXPECT_EQ(second.values, plain());
}

// A saved dropout draws nothing in the recomputation; the one after it must draw the numbers of the forward.
TEST_F(Selective, LaterOperationsDrawTheNumbersOfTheForward) {
  const auto policy = save_operations({{"dropout", 2}});
  EXPECT_EQ(run(policy).values, plain());
  arm_defect(Defect::checkpoint_saved_draws_nothing);
  const Run wrong = run(policy);
  arm_defect(Defect::none);
  EXPECT_NE(wrong.values, plain());
}

// Work of a parallel API in one of the two passes only: a parameter that is gathered already is not gathered again.
TEST_F(Selective, WorkWithoutRecordingShiftsNoCall) {
  int passes = 0;
  const auto gathered = [&](const Tensors& in) {
    if (passes++ == 0) {
      const NoGrad no_grad;
      (void)ops::linear(ops::mul(in[0], in[0]), block.first, nullptr);
    }
    return block(in);
  };
  seed(5);
  const Tensor y = checkpoint(gathered, {x}, {.policy = save_operations({{"linear", 2}})});
  const Tensor loss = ops::sum(ops::mul(y, y));
  const ComputationCount count;
  backward({loss});
  EXPECT_EQ(passes, 2);
  EXPECT_EQ(count.counts(), (Counts{{"linear", 1}, {"dropout", 2}, {"gelu", 2}}));
  const std::vector<std::vector<double>> values = {to_doubles(y), take_grad(x), take_grad(block.first),
                                                   take_grad(block.second)};
  EXPECT_EQ(values, plain());
}

TEST_F(Selective, KeepsTheBytesOfSavedResultsUntilBackward) {
  const Tensor wide = drawn({64, 64}), w = drawn({64, 64});
  const auto region = [w](const Tensors& in) {
    Tensor h = in[0];
    for (int i = 0; i < 8; ++i) h = ops::tanh(ops::matmul(h, w));
    return ops::sum(h);
  };
  const std::int64_t matrix = 64 * 64 * 4, before = activation_bytes();
  {
    const Tensor y = checkpoint(region, {wide}, {.policy = save_operations({{"matmul", 2}})});
    EXPECT_GE(activation_bytes() - before, 4 * matrix);
    EXPECT_LT(activation_bytes() - before, 5 * matrix);
    backward({y});
    EXPECT_EQ(take_grad(wide).size(), take_grad(w).size());
    EXPECT_LT(activation_bytes() - before, matrix) << "backward frees the saved results";
  }
  EXPECT_EQ(activation_bytes(), before);
}

TEST_F(Selective, SavesAgainForARetainedGraph) {
  const Tensor y = checkpoint(block, {x}, {.policy = save_operations({{"linear"}})});
  const Tensor loss = ops::sum(y);
  const ComputationCount count;
  backward({loss}, {}, true);
  const auto once = take_grad(x);
  backward({loss});
  EXPECT_EQ(take_grad(x), once);
  EXPECT_EQ(count.counts(), (Counts{{"dropout", 4}, {"gelu", 4}}));
}

TEST_F(Selective, NestsInARegionThatSavesOthers) {
  const auto expected = plain();
  const auto outer = [&](const Tensors& in) {
    return checkpoint(block, in, {.policy = save_operations({{"linear"}})});
  };
  seed(5);
  const Tensor y = checkpoint(outer, {x}, {.policy = save_operations({{"gelu"}})});
  const Tensor loss = ops::sum(ops::mul(y, y));
  backward({loss});
  const std::vector<std::vector<double>> values = {to_doubles(y), take_grad(x), take_grad(block.first),
                                                   take_grad(block.second)};
  EXPECT_EQ(values, expected);
}

TEST_F(Selective, RefusesASavedResultThatWasChangedInPlace) {
  const auto region = [&](const Tensors& in) {
    const Tensor h = ops::linear(in[0], block.first, nullptr);
    ops::mul_(h, 2.0);
    return ops::tanh(h);
  };
  const Tensor y = checkpoint(region, {x}, {.name = "net.0", .policy = save_operations({{"linear"}})});
  EXPECT_THAT(
      error_of([&] { backward({ops::sum(y)}); }),
      AllOf(HasSubstr("checkpoint of net.0: the saved result of linear (call 0 in the region), float32 (6, 16), "
                      "was changed in place"),
            HasSubstr("change a copy, or let the policy recompute the operation")));
}

TEST_F(Selective, RefusesOperationsThatItCannotSave) {
  for (const char* name : {"view", "add_", "batch_norm", "liner"})
    EXPECT_THAT(error_of([&] { (void)save_operations({{name}}); }),
                AllOf(HasSubstr(str("the results of `", name, "` cannot be saved")), HasSubstr("linear")));
  EXPECT_THAT(error_of([&] { (void)save_operations({{"linear", 0}}); }), HasSubstr("one of every 0"));
}

TEST_F(Selective, RefusesMoreCallsThanInTheForward) {
  int passes = 0;
  const auto region = [&](const Tensors& in) {
    Tensor h = in[0];
    if (passes++ > 0) h = ops::linear(ops::linear(h, block.first, nullptr), block.second, nullptr);
    return ops::tanh(ops::tanh(h));
  };
  const Tensor y = checkpoint(region, {x}, {.policy = save_operations({{"linear"}})});
  EXPECT_THAT(error_of([&] { backward({ops::sum(y)}); }),
              HasSubstr("the recomputation calls linear more often than the forward, which called it 0 times"));
}

// Every operation that can be saved is computed once, and gives the gradients of the plain model.
TEST_F(Selective, EveryOperationThatCanBeSaved) {
  const std::vector<std::string> names = saveable_operations();
  std::size_t tested = 0;
  for (const ops::OpCase& op : ops::op_registry()) {
    const std::string name(op.name);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    ASSERT_TRUE(op.differentiable) << name;
    for (const ops::OpVariant& variant : op.variants) {
      SCOPED_TRACE(str(name, ", ", variant.name));
      const auto attempt = [&](const SavePolicyFunction& policy, Counts& again) {
        Generator generator;
        generator.seed(7);
        Tensors inputs;
        for (const ops::OpInput& input : variant.inputs)
          inputs.push_back(ops::make_input(input, DType::float32, cpu, generator));
        ops::require_gradients(variant, inputs);
        seed(3);
        // gelu reads its input in backward, so that the operation runs in the recomputation.
        const auto region = [&](const Tensors& in) { return ops::gelu(variant.run(in)); };
        const Tensor y = checkpoint(region, inputs, {.policy = policy});
        const ComputationCount count;
        backward({y}, {full(y.sizes(), 1.0, y.dtype(), cpu)});
        again = count.counts();
        std::vector<std::vector<double>> values = {to_doubles(y)};
        for (const Tensor& input : inputs)
          if (grad(input).defined()) values.push_back(to_doubles(grad(input)));
        return values;
      };
      Counts computed, kept;
      EXPECT_EQ(attempt(save_operations({{name}}), kept), attempt({}, computed));
      EXPECT_EQ(kept[name], 0);
      tested += computed[name] > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(tested, 60U);
}

}  // namespace
}  // namespace lockstep
