#include "engine/parallel/fully_shard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/order.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FullyShardOptions named(std::string name, ReshardAfterForward reshard = {}) {
  FullyShardOptions options;
  options.name = std::move(name);
  options.reshard_after_forward = reshard;
  return options;
}

// Makes a group of each given child of Net, then one of the root with the remaining parameters.
void shard_net(const nn::ModulePtr& net, const std::vector<const char*>& children, ReshardAfterForward reshard = {}) {
  for (const char* child : children) fully_shard({net->child(child)}, named(child, reshard));
  fully_shard({net}, named("root", reshard));
}

std::unique_ptr<optim::Optimizer> adam(const nn::ModulePtr& module) {
  optim::Options options;
  options.lr = 1e-2;
  return optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(module), options)});
}

// The values of `plain` that the shard of this rank in `sharded` should have.
std::vector<double> shard_of(const Tensor& plain, const Tensor& sharded) {
  const layout::ShardedLayout& layout = *sharded.layout();
  const int rank = RankContext::current().rank();
  Tensor shard = detach(plain);
  for (int dim = 0; dim < shard.num_dims(); ++dim) {
    const std::vector<layout::Chunk> held = layout::global_ranges(layout, rank, dim);
    const layout::Chunk range = held.empty() ? layout::Chunk{} : held.front();
    shard = slice(shard, dim, range.begin, range.begin + range.length);
  }
  return to_doubles(shard);
}

std::string differing_shard(const nn::ModulePtr& sharded, const nn::ModulePtr& plain) {
  const auto ours = nn::named_parameters(sharded), theirs = nn::named_parameters(plain);
  if (ours.size() != theirs.size()) return "other parameters";
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const Tensor& shard = ours[i].tensor();
    if (ours[i].path != theirs[i].path) return ours[i].path + " instead of " + theirs[i].path;
    if (!shard.is_sharded()) return ours[i].path + " is not sharded";
    if (to_doubles(local_tensor(shard)) != shard_of(theirs[i].tensor(), shard)) return ours[i].path + " differs";
    if (grad(shard).defined() != grad(theirs[i].tensor()).defined()) return ours[i].path + ": one gradient is missing";
    if (grad(shard).defined() && to_doubles(local_tensor(grad(shard))) != shard_of(grad(theirs[i].tensor()), shard))
      return ours[i].path + ".grad differs";
  }
  return "";
}

class FullyShard : public ::testing::TestWithParam<int> {};

TEST_P(FullyShard, TrainsWithTheBitsOfReplicate) {
  const int world_size = GetParam();
  for (const auto& children : std::vector<std::vector<const char*>>{{}, {"fc2"}, {"fc1", "fc2", "fc3"}})
    for (const auto reshard : {ReshardAfterForward::of(true), ReshardAfterForward::of(false)})
      EXPECT_EQ(run(world_size,
                    [&](int rank) {
                      device::set_order_check(true);
                      const nn::ModulePtr reference = built("Net", 3), model = built("Net", 3);
                      replicate(reference, {});
                      shard_net(model, children, reshard);
                      const auto ours = adam(model), theirs = adam(reference);
                      for (std::uint64_t step = 0; step < 4; ++step) {
                        const std::uint64_t seed = 100 * step + static_cast<std::uint64_t>(rank);
                        backward({loss_of(reference, seed)});
                        backward({loss_of(model, seed)});
                        require(differing_shard(model, reference).empty(), differing_shard(model, reference));
                        for (const auto& optimizer : {ours.get(), theirs.get()}) {
                          optimizer->step();
                          optimizer->zero_grad(step % 2 == 0);
                        }
                        require(differing_shard(model, reference).empty(), differing_shard(model, reference));
                      }
                      require(device::order_violations().empty(),
                              device::order_violations().empty() ? "" : device::order_violations()[0].message);
                    }),
                "");
}
INSTANTIATE_TEST_SUITE_P(WorldSizes, FullyShard, ::testing::Values(1, 2, 3, 4));

TEST(FullyShardCollectives, GathersAndReducesOncePerGroup) {
  for (const bool reshard : {true, false})
    EXPECT_EQ(run(2,
                  [reshard](int rank) {
                    const nn::ModulePtr model = built("Net", 3);
                    shard_net(model, {"fc1", "fc2"}, ReshardAfterForward::of(reshard));
                    const auto gathers = [] { return count(Operation::all_gather, Family::data_parallel); };
                    const Tensor loss = loss_of(model, static_cast<std::uint64_t>(rank));
                    require(gathers() == 3, str(gathers(), " gathers in forward"));
                    backward({loss});
                    require(gathers() == (reshard ? 5 : 3), str(gathers(), " gathers in all"));
                    const int reductions = count(Operation::reduce_scatter, Family::data_parallel);
                    require(reductions == 3, str(reductions, " reductions"));
                  }),
              "")
        << reshard;
}

TEST(FullyShardEvents, PrefetchThePreviousGroupInBackward) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 3);
                  shard_net(model, {"fc1", "fc2", "fc3"});
                  const Tensor loss = loss_of(model, static_cast<std::uint64_t>(rank));
                  const std::size_t from = events().size();
                  backward({loss});
                  std::string seen;
                  for (std::size_t i = from; i < events().size(); ++i)
                    if (events()[i].kind == EventKind::unshard || events()[i].kind == EventKind::post_backward)
                      seen += str(name_of(events()[i].kind), " ", events()[i].owner, "; ");
                  // The input of fc1 needs no gradient, so its post_backward comes last, at the end of backward.
                  require(seen ==
                              "unshard fc3; unshard fc2; post_backward fc3; unshard fc1; post_backward fc2; "
                              "post_backward root; post_backward fc1; ",
                          seen);
                }),
            "");
}

TEST(FullyShardFlags, AccumulateFullGradientsWithoutSynchronization) {
  EXPECT_EQ(run(3,
                [](int rank) {
                  const nn::ModulePtr reference = built("Net", 3), model = built("Net", 3);
                  replicate(reference, {});
                  shard_net(model, {"fc1", "fc2"});
                  for (std::uint64_t microbatch = 0; microbatch < 3; ++microbatch) {
                    const bool is_last = microbatch == 2;
                    set_requires_gradient_sync(reference, is_last);
                    ShardFlags flags;
                    flags.requires_gradient_sync = is_last;
                    flags.is_last_backward = is_last;
                    require(set_flags(model, flags) == 3, "another number of groups");
                    const std::uint64_t seed = 10 * microbatch + static_cast<std::uint64_t>(rank);
                    backward({loss_of(reference, seed)});
                    backward({loss_of(model, seed)});
                    const int reductions = count(Operation::reduce_scatter, Family::data_parallel);
                    require(reductions == (is_last ? 3 : 0), str(reductions, " reductions"));
                  }
                  require(differing_shard(model, reference).empty(), differing_shard(model, reference));
                }),
            "");
}

TEST(FullyShardHybrid, SumsOverBothAxesAndDividesOnce) {
  for (const bool reduce_each : {true, false})
    EXPECT_EQ(run(4,
                  [reduce_each](int rank) {
                    const nn::ModulePtr reference = built("Net", 3), model = built("Net", 3);
                    replicate(reference, {});
                    FullyShardOptions options = named("fc2");
                    options.mesh = DeviceMesh({2, 2}, {"replicate", "shard"});
                    fully_shard({model->child("fc2")}, options);
                    options.name = "root";
                    fully_shard({model}, options);
                    for (std::uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
                      const bool is_last = microbatch == 1;
                      ShardFlags flags;
                      flags.requires_all_reduce = is_last || reduce_each;
                      set_flags(model, flags);
                      const std::uint64_t seed = 10 * microbatch + static_cast<std::uint64_t>(rank);
                      backward({loss_of(reference, seed)});
                      backward({loss_of(model, seed)});
                    }
                    const int sums = count(Operation::all_reduce, Family::data_parallel) -
                                     2;  // of the replicated reference: one bucket per backward
                    require(sums == (reduce_each ? 4 : 2), str(sums, " sums over the replicate axis"));
                    const auto ours = nn::named_parameters(model), theirs = nn::named_parameters(reference);
                    for (std::size_t i = 0; i < ours.size(); ++i) {
                      const auto mine = to_doubles(local_tensor(grad(ours[i].tensor())));
                      const auto wanted = shard_of(grad(theirs[i].tensor()), ours[i].tensor());
                      for (std::size_t k = 0; k < mine.size(); ++k)
                        require(std::abs(mine[k] - wanted[k]) <= 1e-6 * std::max(1.0, std::abs(wanted[k])),
                                str(ours[i].path, "[", k, "] ", mine[k], " ", wanted[k]));
                    }
                  }),
              "");
}

TEST(FullyShardState, IsNotStaleAfterAnEvaluation) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 3), plain = built("Net", 3);
                  shard_net(model, {"fc2"}, ReshardAfterForward::of(false));
                  const NoGrad no_grad;
                  const Tensor x = rows(static_cast<std::uint64_t>(rank), {3, 2});
                  require(to_doubles(model->call(x).tensor()) == to_doubles(plain->call(x).tensor()), "at first");
                  require(!model->child("fc2")->parameters[0].tensor.is_sharded(), "sharded after the evaluation");
                  for (const nn::NamedParameter& parameter : nn::named_parameters(model))
                    raw::mul_(local_tensor(parameter.trained()), 2.0);
                  for (const nn::NamedParameter& parameter : nn::named_parameters(plain))
                    raw::mul_(parameter.tensor(), 2.0);
                  require(to_doubles(model->call(x).tensor()) == to_doubles(plain->call(x).tensor()), "after a change");
                }),
            "");
}

TEST(FullyShardState, RecoversFromAForwardThatThrew) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr reference = built("Net", 3), model = built("Net", 3);
                  replicate(reference, {});
                  shard_net(model, {"fc2"});
                  bool fails = true;
                  model->child("fc3")->add_pre_forward(
                      [&](nn::Module&, nn::Inputs&) {
                        if (std::exchange(fails, false)) throw Error("not now");
                      },
                      nn::Module::Place::user);
                  const auto seed = static_cast<std::uint64_t>(rank);
                  require(error_of([&] { loss_of(model, seed); }).find("not now") != std::string::npos, "no error");
                  backward({loss_of(reference, seed)});
                  backward({loss_of(model, seed)});
                  require(differing_shard(model, reference).empty(), differing_shard(model, reference));
                }),
            "");
}

TEST(FullyShardErrors, NameTheProblem) {
  EXPECT_EQ(run(2,
                [](int) {
                  const auto expect = [](const std::string& fragment, const std::function<void()>& action) {
                    const std::string message = error_of(action);
                    require(message.find(fragment) != std::string::npos,
                            str("wanted `", fragment, "`, got `", message, "`"));
                  };
                  const nn::ModulePtr model = built("Net", 3);
                  fully_shard({model->child("fc1")}, named("fc1"));
                  expect("has already been applied", [&] { fully_shard({model->child("fc1")}, {}); });
                  expect("it should be a factor of 2, not 3",
                         [&] { fully_shard({model->child("fc2")}, named("fc2", ReshardAfterForward::among(3))); });
                  FullyShardOptions cube;
                  cube.mesh = DeviceMesh({1, 1, 2}, {"a", "b", "c"});
                  expect("expects a 1D or 2D DeviceMesh", [&] { fully_shard({model->child("fc2")}, cube); });
                  replicate(model->child("fc3"), {});
                  expect("already managed by `replicate`", [&] { fully_shard({model->child("fc3")}, {}); });
                  expect("does not support deepcopy", [&] { nn::clone_module(model); });
                  expect("was not applied to", [&] { reshard(model->child("fc2")); });

                  const nn::ModulePtr tied = built("Net", 3);
                  tied->child("fc2")->parameters[0].tensor = tied->child("fc1")->parameters[0].tensor;
                  fully_shard({tied->child("fc1")}, named("fc1"));
                  expect("which another group has sharded", [&] { fully_shard({tied->child("fc2")}, named("fc2")); });
                }),
            "");
}

TEST(FullyShardErrors, ReportAChildThatRanBeforeTheRoot) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = built("Net", 3);
                  shard_net(model, {"fc2"});
                  model->child("fc2")->call(rows(1, {3, 2}));
                  const std::string message = error_of([&] { model->call(rows(1, {3, 2})); });
                  require(
                      message.find("FSDP requires running forward through the root module first") != std::string::npos,
                      message);
                }),
            "");
}

TEST(FullyShardErrors, LeaveARefusedRootUsable) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr reference = built("Net", 3), model = built("Net", 3);
                  replicate(reference, {});
                  fully_shard({model->child("fc1"), model->child("fc2")}, named("fc1+fc2"));
                  fully_shard({model}, named("root"));
                  const std::string message = error_of([&] { model->child("fc1")->call(rows(1, {3, 2})); });
                  require(message.find("requires a single root module") != std::string::npos, message);
                  const auto seed = static_cast<std::uint64_t>(rank);
                  backward({loss_of(reference, seed)});
                  const std::size_t from = comm::log().size();
                  backward({loss_of(model, seed)});
                  require(differing_shard(model, reference).empty(), differing_shard(model, reference));
                  const int gathers = count(Operation::all_gather, Family::data_parallel, from);
                  require(gathers == 3, str(gathers, " gathers"));
                }),
            "");
}

TEST(FullyShardErrors, NameAParameterWhoseSlotIsEmpty) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = built("Net", 3);
                  shard_net(model, {"fc1"});
                  model->child("fc1")->parameters[0].tensor = Tensor();
                  const std::string message = error_of([&] { model->call(rows(1, {3, 2})); });
                  require(message.find("was replaced by nothing, which is not sharded as") != std::string::npos,
                          message);
                }),
            "");
}

struct Container : nn::Module {
  Container() : Module("Container") {}
  nn::ModulePtr clone_shell() const override { return std::make_shared<Container>(); }
  std::vector<std::string> methods() const override { return {}; }
  nn::Structure run(std::string_view, const nn::Inputs&) override { return {}; }
};

TEST(FullyShardErrors, RefuseContainersWithoutForward) {
  EXPECT_THAT(
      run(1,
          [](int) {
            const auto container = std::make_shared<Container>();
            container->add_child("a", built("Linear", 1, {{2, 2}, {}}));
            fully_shard({container});
          }),
      HasSubstr("fully_shard does not support containers that do not implement forward: Container(\n  a: Linear"));
}

TEST(FullyShardOrder, ListsParametersInTheOrderOfTheGroup) {
  EXPECT_EQ(run(1,
                [](int) {
                  const nn::ModulePtr net = branches(1);
                  const std::vector<nn::ModulePtr> both = {net->child("a"), net->child("b")};
                  const std::vector<std::string> listed = parameters_to_shard(both, {});
                  require(listed == std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}, "the list");
                  fully_shard(both);
                  require(both[0]->applied.find(fully_shard_name)->second.parameter_names == listed, "the group");
                }),
            "");
}

// The shards change between the forward and the backward that gathers them again.
TEST(FullyShardOrder, WaitsInBackwardForChangedShards) {
  for (const bool armed : {false, true}) {
    arm_defect(armed ? Defect::shard_unshard_ignores_compute : Defect::none);
    const std::string failure = run(2, [](int) {
      device::set_order_check(true);
      const nn::ModulePtr model = built("Linear", 1, {{4, 4}, {}});
      fully_shard({model}, named("root"));
      const Tensor x = full({2, 4}, 1.0, DType::float32, {});
      const Tensor y = model->call(x).tensor();
      const Tensor z = ops::sum(model->call(y).tensor());
      reshard(model);
      const NoGrad no_grad;
      for (const nn::NamedParameter& parameter : nn::named_parameters(model))
        raw::mul_(local_tensor(parameter.trained()), 1.0);
      std::string seen;
      try {
        backward({z});
      } catch (const Error& error) {
        seen = error.what();
      }
      require(seen.find("was changed in place") != std::string::npos, seen);
      require(device::order_violations().empty(),
              device::order_violations().empty() ? "" : device::order_violations()[0].message);
    });
    arm_defect(Defect::none);
    if (armed)
      EXPECT_THAT(failure, HasSubstr("nothing orders two accesses to memory of weight (parameter, "));
    else
      EXPECT_EQ(failure, "");
  }
}

}  // namespace
}  // namespace lockstep::parallel
