#include "engine/parallel/contract.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"
#include "engine/nn/build.hpp"

namespace lockstep::parallel {
namespace {

using ::testing::HasSubstr;

TEST(Contract, AppliesAnApiOnce) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const nn::ModulePtr net = nn::build("Net", {}, {});
  Application(net, "replicate").complete({{"n", 3}}, {"fc1.weight"}, {});
  EXPECT_TRUE(is_applied(*net, "replicate"));
  EXPECT_FALSE(is_applied(*net->child("fc1"), "replicate"));
  EXPECT_EQ(net->applied.at("replicate").parameter_names, std::vector<std::string>{"fc1.weight"});
  try {
    Application(net, "replicate");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("Each distinct composable distributed API can only be applied to a module once. "
                          "replicate has already been applied to the following module: Net(\n  fc1: "
                          "Linear\n  fc2: Linear\n  fc3: Linear\n)"));
  }
  Application(net, "activation_checkpoint").complete({}, {}, {});  // another API
}

TEST(Contract, KeepsNamesAndOrderOfParameters) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const nn::ModulePtr net = nn::build("Net", {}, {});
  const Application application(net, "something");
  std::swap(net->children[0], net->children[1]);
  EXPECT_THROW(application.complete({}, {}, {}), InternalError);
  EXPECT_FALSE(is_applied(*net, "something"));
}

TEST(Contract, FindsTheModulesThatManageAParameter) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const nn::ModulePtr stack = nn::build("MLPStack", {{4}, {}}, {});
  const nn::ModulePtr first = stack->child("0"), second = stack->child("1"), proj = second->child("in_proj");
  Application(stack, "replicate").complete({}, {"1.in_proj.weight", "1.in_proj.bias", "2.in_proj.weight"}, {});
  Application(second, "fully_shard").complete({}, {"in_proj.weight"}, {});
  Application(first, "something").complete({}, {"in_proj.weight"}, {});
  const auto found = [](const nn::ModulePtr& module, const char* api) {
    std::string text;
    for (const Managing& one : managing_modules(module, api)) text += one.module->type() + "/" + one.path + " ";
    return text;
  };
  EXPECT_EQ(found(proj, "replicate"), "MLPStack/1.in_proj ");
  EXPECT_EQ(found(second, "replicate"), "MLPStack/1 ");
  EXPECT_EQ(found(second, "fully_shard"), "MLP/ ");
  EXPECT_EQ(found(proj, "fully_shard"), "MLP/in_proj ");
  EXPECT_EQ(found(second->child("out_proj"), "fully_shard"), "") << "a module that it ignores";
  EXPECT_EQ(found(first->child("in_proj"), "replicate"), "");
  EXPECT_EQ(found(first->child("in_proj"), "fully_shard"), "");
}

}  // namespace
}  // namespace lockstep::parallel
