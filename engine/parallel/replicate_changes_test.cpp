// Replicated modules whose parameters, children or owners change.
#include <gtest/gtest.h>

#include "engine/parallel/replicate.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;

TEST(ReplicateChanges, GivesEachReplicatedChildAReducer) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = built("Net", 5);
                  for (const char* layer : {"fc1", "fc2", "fc3"}) replicate(model->child(layer));
                  replicate(model);  // leaves the parameters of its children to them
                  require(model->applied.at("replicate").parameter_names.empty(), "nothing is left");
                  const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                  require(count(Operation::all_reduce, Family::data_parallel) == 3, "one per layer");
                  require(set_requires_gradient_sync(model, false) == 4, "recurses");
                  require(set_requires_gradient_sync(model, false, false) == 1, "does not recurse");
                }),
            "");
}

TEST(ReplicateChanges, HandsParametersToAChildThatIsReplicatedLater) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5), plain = built("Net", 5);
                  replicate(model);
                  loss_of(model, 1);
                  replicate(model->child("fc2"));
                  const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                    return loss_of(copy, static_cast<std::uint64_t>(of));
                  });
                  backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                  require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
                }),
            "");
}

TEST(ReplicateChanges, FollowsRequiresGrad) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5), plain = built("Net", 5);
                  const auto freeze = [&](bool frozen) {
                    for (const nn::ModulePtr& of : {model, plain})
                      for (const nn::ParameterSlot& slot : of->child("fc1")->parameters)
                        set_requires_grad(slot.tensor, !frozen);
                  };
                  replicate(model);
                  for (const bool frozen : {true, false, true}) {
                    freeze(frozen);
                    nn::zero_grad(model);
                    backward({loss_of(model, static_cast<std::uint64_t>(rank))});
                    freeze(false);
                    const auto expected = mean_gradients(plain, 2, [](const nn::ModulePtr& copy, int of) {
                      return loss_of(copy, static_cast<std::uint64_t>(of));
                    });
                    require(grad(model->child("fc1")->parameters[0].tensor).defined() == !frozen, "gradient of fc1");
                    const Tensor gradient = grad(model->child("fc3")->parameters[0].tensor);
                    const auto ours = to_doubles(gradient);
                    require(std::equal(ours.begin(), ours.end(), expected[4].begin(),
                                       [](double a, float b) { return static_cast<float>(a) == b; }),
                            "fc3.weight.grad");
                  }
                }),
            "");
}

TEST(ReplicateChanges, FollowsCastsAndAssignedParameters) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = built("Net", 5);
                  replicate(model);
                  backward({loss_of(model, 1)});
                  nn::cast_module(model, DType::float64);
                  nn::zero_grad(model);
                  const auto step = [&] {
                    const Tensor x = raw::cast(rows(1, {3, 2}), DType::float64);
                    backward({ops::sum(ops::mul(model->call(x).tensor(), 1.0 + rank))});
                  };
                  step();
                  const Tensor bias = model->child("fc3")->parameters[1].tensor;
                  require(grad(bias).dtype() == DType::float64, "type");
                  require(to_doubles(grad(bias)) == std::vector<double>({4.5, 4.5}), "mean of 3 and 6");
                  nn::load_state_dict(model, {{"fc3.bias", zeros({2}, DType::float64, {})}}, false, true);
                  step();
                  const Tensor assigned = model->child("fc3")->parameters[1].tensor;
                  require(to_doubles(grad(assigned)) == std::vector<double>({4.5, 4.5}), "the assigned tensor");
                }),
            "");
}

TEST(ReplicateChanges, FreesTheModuleWithItsLastOwner) {
  EXPECT_EQ(run(2,
                [](int) {
                  std::weak_ptr<nn::Module> module, child;
                  Tensor parameter;
                  {
                    const nn::ModulePtr model = built("Net", 5);
                    replicate(model->child("fc1"));
                    replicate(model);
                    backward({loss_of(model, 1)});
                    module = model;
                    child = model->child("gradient of fc1");
                    parameter = model->child("fc2")->parameters[0].tensor;
                  }
                  require(module.expired() && child.expired(), "a reducer owns its module");
                  require(!has_accumulator(parameter), "the parameter still has an accumulator");
                }),
            "");
}

TEST(ReplicateChanges, KeepsStateDictsAndLeavesCopiesPlain) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr plain = built("Net", 5);
                  const nn::ModulePtr model = nn::clone_module(plain);
                  replicate(model);
                  model->call(rows(1, {1, 2}));
                  const nn::StateDict ours = nn::state_dict(model), theirs = nn::state_dict(plain);
                  require(ours.size() == theirs.size(), "keys");
                  for (std::size_t i = 0; i < ours.size(); ++i)
                    require(
                        ours[i].first == theirs[i].first && to_doubles(ours[i].second) == to_doubles(theirs[i].second),
                        ours[i].first);
                  const nn::ModulePtr copy = nn::clone_module(model);
                  require(copy->applied.empty(), "the copy is replicated");
                  const std::size_t from = comm::log().size();
                  backward({loss_of(copy, 1)});
                  require(comm::log().size() == from, "the copy communicates");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
