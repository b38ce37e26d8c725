// What tensor_parallel promises besides numbers: names, order, ties, start-up, meta construction, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/contract.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/tensor_parallel_testing.hpp"

namespace lockstep::parallel {
namespace {

using layout::shard;
using nn::ModulePtr;
using testing::built;
using testing::error_of;
using ::testing::HasSubstr;
using testing::require;
using testing::require_close;
using testing::shard_of;

std::vector<std::string> names_of(const ModulePtr& module) {
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : nn::named_parameters(module, false)) names.push_back(parameter.path);
  return names;
}

std::vector<PlannedModule> plan_of_mlp(const ModulePtr& mlp) {
  return {{"in_proj", mlp->child("in_proj"), Colwise{}}, {"out_proj", mlp->child("out_proj"), Rowwise{}}};
}

TEST(TensorParallel, KeepsNamesAndShowsItsSettings) {
  EXPECT_EQ(testing::run(2,
                         [](int) {
                           const ModulePtr mlp = built("MLP", 1, {{4}, {}});
                           const auto before = names_of(mlp);
                           tensor_parallel(mlp, DeviceMesh::world("tp"), plan_of_mlp(mlp), "net");
                           require(names_of(mlp) == before, "names");
                           require(mlp->applied.empty(), "only planned modules");
                           const auto& applied = mlp->child("in_proj")->applied.at("tensor_parallel");
                           require(applied.parameter_names == std::vector<std::string>({"weight", "bias"}), "taken");
                           require(*applied.settings.at("style").get_if<std::string>() == "colwise", "style");
                           require(*applied.settings.at("output").get_if<std::string>() == "Shard(-1)", "output");
                           require(*applied.settings.at("mesh").get_if<std::string>() == "tp 2", "mesh");
                           for (const nn::NamedParameter& parameter : nn::named_parameters(mlp)) {
                             require(parameter.tensor().is_sharded() && requires_grad(parameter.tensor()), "leaf");
                             require(parameter.tensor().name() == parameter.path, parameter.tensor().name());
                           }
                         }),
            "");
}

// The ranks start with different values; all take those of the first.
TEST(TensorParallel, StartsWithTheValuesOfTheFirstRank) {
  EXPECT_EQ(testing::run(3,
                         [](int rank) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           const ModulePtr mlp = built("MLP", 10 + static_cast<std::uint64_t>(rank), {{4}, {}});
                           const ModulePtr first = built("MLP", 10, {{4}, {}});
                           const std::size_t position = comm::log().size();
                           tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
                           require(
                               testing::count(comm::Operation::all_gather, comm::Family::start_up, position) == 1 &&
                                   testing::count(comm::Operation::broadcast, comm::Family::start_up, position) == 2,
                               "one all-gather, one broadcast of shapes, one of values");
                           require(comm::log().size() == position + 3, "no other collective");
                           for (std::size_t i = position; i < comm::log().size(); ++i)
                             require(comm::log()[i].owner == "net", "owner");
                           const auto made = nn::named_parameters(mlp), expected = nn::named_parameters(first);
                           for (std::size_t i = 0; i < made.size(); ++i)
                             require_close(full_tensor(detach(made[i].tensor())), expected[i].tensor(), made[i].path);
                         }),
            "");
}

TEST(TensorParallel, FailsOnEveryRankForDifferentPlans) {
  const auto error = [](int rank) {
    const ModulePtr mlp = built("MLP", 1, {{4}, {}});
    std::vector<PlannedModule> plan = plan_of_mlp(mlp);
    if (rank == 1) plan[0].style = Rowwise{};
    return error_of([&] { tensor_parallel(mlp, DeviceMesh::world("tp"), plan, "net"); });
  };
  EXPECT_EQ(testing::run(2,
                         [&](int rank) {
                           const std::string text = error(rank);
                           require(text.find("tensor_parallel: the ranks have different parameters in net") == 0 &&
                                       text.find("in_proj.weight as Shard(0)") != std::string::npos,
                                   text);
                         }),
            "");
}

TEST(TensorParallel, KeepsFrozenParametersFrozen) {
  EXPECT_EQ(testing::run(2,
                         [](int) {
                           const ModulePtr mlp = built("MLP", 1, {{4}, {}});
                           set_requires_grad(mlp->child("in_proj")->parameters[0].tensor, false);
                           tensor_parallel(mlp, DeviceMesh::world("tp"), plan_of_mlp(mlp));
                           const Tensor y = mlp->call(testing::rows(2, {3, 4})).tensor();
                           backward({ops::sum(ops::mul(y, y))});
                           require(!grad(mlp->child("in_proj")->parameters[0].tensor).defined(), "frozen");
                           require(grad(mlp->child("in_proj")->parameters[1].tensor).defined(), "trained");
                         }),
            "");
}

// Built on meta, distributed, given memory and drawn: each rank has its shard of one full draw.
TEST(TensorParallel, DrawsOneFullParameterAfterConstructionOnMeta) {
  EXPECT_EQ(testing::run(3,
                         [](int) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           const ModulePtr mlp = nn::build("MLP", {{5}, {}}, {DType::float32, {device::Kind::meta, 0}});
                           const std::size_t position = comm::log().size();
                           tensor_parallel(mlp, mesh, plan_of_mlp(mlp));
                           require(testing::count(comm::Operation::broadcast, comm::Family::start_up, position) == 1,
                                   "no values to send");
                           nn::materialize(mlp, {});
                           RankContext::current().generator().seed(4);
                           for (const nn::NamedModule& entry : nn::named_modules(mlp)) nn::redraw(entry.module);
                           const ModulePtr plain = built("MLP", 4, {{5}, {}});
                           const auto made = nn::named_parameters(mlp), expected = nn::named_parameters(plain);
                           for (std::size_t i = 0; i < made.size(); ++i) {
                             require(made[i].tensor().is_sharded(), made[i].path);
                             require_close(full_tensor(detach(made[i].tensor())), expected[i].tensor(), made[i].path);
                           }
                           const Tensor x = testing::rows(2, {3, 5});
                           require_close(detach(mlp->call(x).tensor()), detach(plain->call(x).tensor()), "forward",
                                         1e-5);
                         }),
            "");
}

// ---- ties ----
ModulePtr tied_pair() {
  const ModulePtr pair =
      nn::build("Sequential", {}, {},
                {nn::build("Embedding", {{8, 6}, {}}, {}), nn::build("Linear", {{6, 8}, {{"bias", false}}}, {})});
  pair->child("1")->parameters[0].tensor = pair->child("0")->parameters[0].tensor;
  return pair;
}

TEST(TensorParallel, KeepsATiedParameterOneParameter) {
  EXPECT_EQ(testing::run(2,
                         [](int) {
                           const DeviceMesh mesh = DeviceMesh::world("tp");
                           const ModulePtr pair = tied_pair();
                           tensor_parallel(pair, mesh,
                                           {{"0", pair->child("0"), Rowwise{.input = layout::replicate()}},
                                            {"1", pair->child("1"), Colwise{}}});
                           require(
                               pair->child("0")->parameters[0].tensor.same_as(pair->child("1")->parameters[0].tensor),
                               "one parameter");
                           require(nn::named_parameters(pair).size() == 1, "listed once");
                         }),
            "");
}

TEST(TensorParallel, RefusesToUntieAParameter) {
  EXPECT_EQ(
      testing::run(2,
                   [](int) {
                     const DeviceMesh mesh = DeviceMesh::world("tp");
                     const ModulePtr pair = tied_pair();
                     const std::string placements = error_of([&] {
                       tensor_parallel(pair, mesh,
                                       {{"0", pair->child("0"), Colwise{}}, {"1", pair->child("1"), Colwise{}}}, "net");
                     });
                     require(placements.find("net.0.weight and net.1.weight are one parameter, but the plan asks "
                                             "for Shard(1) and Shard(0)") != std::string::npos,
                             placements);
                     const std::string unplanned = error_of([&] {
                       tensor_parallel(pair, mesh, {{"1", pair->child("1"), Colwise{}}}, "net");
                     });
                     require(unplanned.find("net.1.weight and net.0.weight are one parameter, and the plan has no "
                                            "style for the second") != std::string::npos,
                             unplanned);
                     require(!pair->child("0")->parameters[0].tensor.is_sharded(), "nothing has changed");
                   }),
      "");
}

// ---- refusals ----
std::string refusal(const std::function<void(const DeviceMesh&, const ModulePtr&)>& action) {
  std::string text;
  const std::string failure = testing::run(2, [&](int rank) {
    const DeviceMesh mesh = DeviceMesh::world("tp");
    const ModulePtr mlp = built("MLP", 1, {{4}, {}});
    const std::string found = error_of([&] { action(mesh, mlp); });
    if (rank == 0) text = found;
  });
  return failure.empty() ? text : failure;
}

TEST(TensorParallelRefusals, NameTheModuleAndTheRemedy) {
  EXPECT_THAT(refusal([](const DeviceMesh&, const ModulePtr& mlp) {
                tensor_parallel(mlp, DeviceMesh({1, 2}, {"dp", "tp"}), plan_of_mlp(mlp), "net");
              }),
              HasSubstr("tensor_parallel of net expects a mesh of one axis, but got dp 1 x tp 2"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                tensor_parallel(mlp, mesh, {{"", mlp, Colwise{}}}, "net");
              }),
              HasSubstr("colwise supports Linear and Embedding, but not MLP"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                tensor_parallel(
                    mlp, mesh,
                    {{"in_proj", mlp->child("in_proj"), Colwise{}}, {"in_proj", mlp->child("in_proj"), Rowwise{}}},
                    "net");
              }),
              HasSubstr("net.in_proj has two styles in the plan"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
              }),
              HasSubstr("tensor_parallel has already been applied to the following module: Linear"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                FullyShardOptions options;
                options.mesh = mesh;
                fully_shard({mlp}, options);
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
              }),
              HasSubstr("Cannot apply `tensor_parallel()` to net.in_proj: `fully_shard` has been applied to net"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                ReplicateOptions options;
                options.mesh = mesh;
                parallel::replicate(mlp->child("out_proj"), options);
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
              }),
              HasSubstr("to net.out_proj: `replicate` has been applied to net.out_proj"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                backward({ops::sum(mlp->call(testing::rows(2, {3, 4})).tensor())});
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
              }),
              HasSubstr("net.in_proj.weight has a gradient"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
                nn::clone_module(mlp);
              }),
              HasSubstr("net.in_proj cannot be copied"));
  EXPECT_THAT(refusal([](const DeviceMesh& mesh, const ModulePtr& mlp) {
                tensor_parallel(mlp, mesh, plan_of_mlp(mlp), "net");
                mlp->call(distribute(testing::rows(2, {4, 4}), DeviceMesh::world("other"), {shard(0)}));
              }),
              HasSubstr("net.in_proj is distributed over tp 2, but gets"));
}

}  // namespace
}  // namespace lockstep::parallel
