#include "engine/nn/module.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/placement.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/build.hpp"
#include "engine/nn/layers.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModuleTree : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};

  ModulePtr make(std::string_view name, Inputs arguments = {}, std::vector<ModulePtr> modules = {}) {
    return build(name, arguments, {}, modules);
  }
  Tensor input(const Dims& sizes) { return randn(sizes, DType::float32, {}); }
};

std::vector<std::string> names_of(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) names.push_back(parameter.path);
  return names;
}
std::vector<std::string> keys_of(const StateDict& state) {
  std::vector<std::string> keys;
  for (const auto& [name, tensor] : state) keys.push_back(name);
  return keys;
}
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(ModuleTree, DrawsTheWeightsOfPyTorch) {
  context.generator().seed(0);
  const ModulePtr net = make("Net");
  // The values that PyTorch prints for nn.Linear(2, 2) after torch.manual_seed(0).
  const auto weight = to_doubles(net->child("fc1")->parameters[0].tensor);
  const auto bias = to_doubles(net->child("fc1")->parameters[1].tensor);
  EXPECT_NEAR(weight[0], -0.0053, 5e-5);
  EXPECT_NEAR(weight[1], 0.3793, 5e-5);
  EXPECT_NEAR(weight[2], -0.5820, 5e-5);
  EXPECT_NEAR(weight[3], -0.5204, 5e-5);
  EXPECT_NEAR(bias[0], -0.2723, 5e-5);
  EXPECT_NEAR(bias[1], 0.1896, 5e-5);
}

TEST_F(ModuleTree, ListsParametersInRegistrationOrder) {
  const ModulePtr model = make("CompositeParamModel");
  EXPECT_THAT(names_of(named_parameters(model)),
              ElementsAre("p", "l.weight", "l.bias", "u1.l1.weight", "u1.l1.bias", "u1.seq.1.weight", "u1.seq.1.bias",
                          "u1.l2.weight", "u1.l2.bias", "u2.l1.weight", "u2.l1.bias", "u2.seq.1.weight",
                          "u2.seq.1.bias", "u2.l2.weight", "u2.l2.bias"));
  EXPECT_EQ(keys_of(state_dict(model))[1], "buffer");
  EXPECT_EQ(named_buffers(model)[0].path, "buffer");
  EXPECT_EQ(named_modules(model)[0].path, "");
  EXPECT_EQ(model->child("u1")->child("seq")->children[1].module->parameters[0].tensor.name(), "u1.seq.1.weight");
  EXPECT_TRUE(requires_grad(named_parameters(model)[0].tensor()));
  EXPECT_FALSE(requires_grad(named_buffers(model)[0].tensor()));
}

TEST_F(ModuleTree, LinearMultipliesWithTheTransposedWeight) {
  const ModulePtr linear = make("Linear", {{2, 3}, {}});
  load_state_dict(linear, {{"weight", from_values(std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2}, DType::float32, {})},
                           {"bias", from_values(std::vector<double>{10, 20, 30}, {3}, DType::float32, {})}});
  const Tensor x = from_values(std::vector<double>{1, 1, 0, 2}, {2, 2}, DType::float32, {});
  const Tensor y = linear->call(x).tensor();
  EXPECT_THAT(to_doubles(y), ElementsAre(13, 27, 41, 14, 28, 42));
  backward({ops::sum(y)});
  EXPECT_THAT(to_doubles(grad(linear->parameters[0].tensor)), ElementsAre(1, 3, 1, 3, 1, 3));
  EXPECT_THAT(to_doubles(grad(linear->parameters[1].tensor)), ElementsAre(2, 2, 2));
  EXPECT_EQ(named_parameters(make("Linear", {{2, 3, false}, {}})).size(), 1u);
}

TEST_F(ModuleTree, ModelsMatchTheirChildren) {
  const ModulePtr mlp = make("MLP", {{4}, {{"buffer", true}}});
  const Tensor x = input({3, 4});
  const Tensor expected =
      ops::add(ops::relu(mlp->child("out_proj")->call(ops::relu(mlp->child("in_proj")->call(x).tensor())).tensor()),
               mlp->buffer_slot("buffer")->tensor);
  EXPECT_EQ(to_doubles(mlp->call(x).tensor()), to_doubles(expected));
  EXPECT_EQ(mlp->child("in_proj")->parameters[0].tensor.sizes(), (Dims{16, 4}));

  const ModulePtr twice = make("MultiForwardModule");
  const Tensor once = twice->child("inner")->call(x).tensor();
  EXPECT_EQ(to_doubles(twice->call(x).tensor()),
            to_doubles(twice->child("outer")->call(ops::add(once, once)).tensor()));

  const ModulePtr stack = make("MLPStack", {{4}, {}});
  EXPECT_EQ(stack->child("0")->child("in_proj")->parameters[0].tensor.sizes(), (Dims{12, 4}));
  EXPECT_EQ(stack->call(x).tensor().sizes(), (Dims{3, 4}));
  EXPECT_EQ(make("SimpleModel")->call(input({2, 5})).tensor().sizes(), (Dims{2, 12}));

  context.generator().seed(77);
  const auto first = to_doubles(make("MLPModule")->child("net1")->parameters[0].tensor);
  EXPECT_EQ(to_doubles(make("MLPModule")->child("net1")->parameters[0].tensor), first);

  const ModulePtr my_net = make("MyNet");
  const Tensor rows = input({2, 2});
  const Tensor factor = input({2, 2});
  EXPECT_EQ(to_doubles(my_net->call({{rows}, {{"kwarg", factor}}}).tensor()),
            to_doubles(my_net->child("a")->call(ops::matmul(rows, factor)).tensor()));
}

TEST_F(ModuleTree, RunsHooksInOrder) {
  const ModulePtr net = make("Net");
  std::vector<std::string> order;
  const auto note = [&order](const char* what) { return [&order, what](auto&&...) { order.push_back(what); }; };
  using Place = Module::Place;
  net->add_pre_forward(note("pre user"), Place::user);
  net->add_pre_forward(note("pre api"), Place::api);
  net->add_pre_forward(note("pre api first"), Place::api, true);
  net->add_post_forward(note("post api"), Place::api);
  net->add_post_forward(note("post user"), Place::user);
  net->add_pre_backward(note("before backward"));
  net->add_post_backward(note("after backward"));
  net->add_pre_backward(note("before backward api"), Place::api);
  net->add_post_backward(note("after backward api"), Place::api);
  Tensor x = input({1, 2});
  set_requires_grad(x, true);
  backward({ops::sum(net->call(x).tensor())});
  EXPECT_THAT(order, ElementsAre("pre api first", "pre api", "pre user", "post user", "post api", "before backward api",
                                 "before backward", "after backward", "after backward api"));
}

TEST_F(ModuleTree, LetsHooksReplaceInputsAndOutputs) {
  const ModulePtr relu = make("ReLU");
  const auto pre = relu->add_pre_forward(
      [](Module&, Inputs& inputs) { inputs.positional[0] = raw::neg(inputs.positional[0].tensor()); });
  relu->add_post_forward([](Module&, const Inputs&, Structure& outputs) { outputs = raw::add(outputs.tensor(), 1.0); });
  const Tensor x = from_values(std::vector<double>{-2, 3}, {2}, DType::float32, {});
  EXPECT_THAT(to_doubles(relu->call(x).tensor()), ElementsAre(3, 1));
  relu->remove_hook(pre);
  EXPECT_THAT(to_doubles(relu->call(x).tensor()), ElementsAre(1, 4));
}

TEST_F(ModuleTree, RunsBackwardHooksWhenGradientsAreComplete) {
  const ModulePtr net = make("Net");
  std::vector<std::string> order;
  const Tensor last_bias = net->child("fc3")->parameters[1].tensor;
  const Tensor first_weight = net->child("fc1")->parameters[0].tensor;
  add_post_accumulate_hook(last_bias, [&](const Tensor&) { order.push_back("fc3.bias"); });
  add_post_accumulate_hook(first_weight, [&](const Tensor&) { order.push_back("fc1.weight"); });
  net->add_pre_backward([&](Module&) { order.push_back("before"); });
  net->add_post_backward([&](Module&) { order.push_back("after"); });
  const ModulePtr fc2 = net->child("fc2");
  fc2->add_post_backward([&](Module&) { order.push_back("after fc2"); });
  backward({ops::sum(net->call(input({1, 2})).tensor())});  // no input requires a gradient, so `after` runs at the end
  EXPECT_THAT(order, ElementsAre("before", "fc3.bias", "after fc2", "fc1.weight", "after"));
}

TEST_F(ModuleTree, RunsHooksForRegisteredMethods) {
  struct TwoMethods : Module {
    TwoMethods() : Module("TwoMethods") {}
    std::vector<std::string> methods() const override { return {"forward", "features"}; }
    ModulePtr clone_shell() const override { return std::make_shared<TwoMethods>(); }
    Structure run(std::string_view method, const Inputs&) override { return std::string(method); }
  };
  const auto module = std::make_shared<TwoMethods>();
  int calls = 0;
  module->add_pre_forward([&](Module&, Inputs&) { ++calls; });
  EXPECT_EQ(*module->call({}, "features").get_if<std::string>(), "features");
  EXPECT_EQ(calls, 0);
  module->register_forward_method("features");
  module->call({}, "features");
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(error_of([&] { module->register_forward_method("other"); }), HasSubstr("no method `other`"));
}

TEST_F(ModuleTree, SetsThePhaseInTheOutermostCall) {
  const ModulePtr net = make("Net");
  comm::Phase inside = comm::Phase::other, recomputed = comm::Phase::other;
  net->child("fc2")->add_pre_forward([&](Module&, Inputs&) { inside = comm::current_phase(); });
  net->call(input({1, 2}));
  EXPECT_EQ(inside, comm::Phase::forward);
  {
    const comm::PhaseScope phase(comm::Phase::backward);
    net->call(input({1, 2}));
    recomputed = inside;
  }
  EXPECT_EQ(recomputed, comm::Phase::backward);
  EXPECT_EQ(comm::current_phase(), comm::Phase::other);
}

TEST_F(ModuleTree, ClonesTiesAndGradients) {
  const ModulePtr net = make("Net");
  net->child("fc3")->parameters[0].tensor = net->child("fc1")->parameters[0].tensor;          // tied
  net->child("fc2")->parameters[0].tensor = detach(net->child("fc2")->parameters[0].tensor);  // frozen
  backward({ops::sum(net->call(input({2, 2})).tensor())});
  int calls = 0;
  net->add_pre_forward([&](Module&, Inputs&) { ++calls; });
  const ModulePtr copy = clone_module(net);
  copy->call(input({1, 2}));
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(copy->child("fc3")->parameters[0].tensor.same_as(copy->child("fc1")->parameters[0].tensor));
  EXPECT_FALSE(requires_grad(copy->child("fc2")->parameters[0].tensor));
  const auto ours = named_parameters(net), theirs = named_parameters(copy);
  ASSERT_EQ(names_of(ours), names_of(theirs));
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(to_doubles(ours[i].tensor()), to_doubles(theirs[i].tensor()));
    EXPECT_NE(ours[i].tensor().storage(), theirs[i].tensor().storage());
    ASSERT_EQ(grad(ours[i].tensor()).defined(), grad(theirs[i].tensor()).defined());
    if (grad(ours[i].tensor()).defined()) {
      EXPECT_EQ(to_doubles(grad(ours[i].tensor())), to_doubles(grad(theirs[i].tensor())));
      EXPECT_NE(grad(ours[i].tensor()).storage(), grad(theirs[i].tensor()).storage());
    }
  }
  EXPECT_EQ(keys_of(state_dict(copy)).size(), 6u);  // both names of the tied parameter
  EXPECT_EQ(named_parameters(copy, false).size(), 6u);
  EXPECT_EQ(named_parameters(copy).size(), 5u);
  net->copy_refusal = "cannot be copied";
  EXPECT_THAT(error_of([&] { clone_module(net); }), HasSubstr("cannot be copied"));
}

TEST_F(ModuleTree, KeepsTensorsAndTiesInCasts) {
  const ModulePtr net = make("CompositeParamModel");
  const Tensor p = net->parameters[0].tensor;
  set_grad(p, ones({100, 100}, DType::float32, {}));
  cast_module(net, DType::float64);
  EXPECT_TRUE(net->parameters[0].tensor.same_as(p));
  EXPECT_EQ(p.dtype(), DType::float64);
  EXPECT_EQ(grad(p).dtype(), DType::float64);
  EXPECT_EQ(net->buffers[0].tensor.dtype(), DType::float64);
  EXPECT_EQ(net->child("l")->parameters[1].tensor.dtype(), DType::float64);
  EXPECT_THAT(error_of([&] { cast_module(net, DType::int64); }), HasSubstr("int64"));
}

TEST_F(ModuleTree, LoadsStateByNameAndReportsAllProblems) {
  const ModulePtr net = make("Net");
  const ModulePtr other = make("Net");
  const Tensor weight = net->child("fc1")->parameters[0].tensor;
  load_state_dict(net, state_dict(other));
  EXPECT_EQ(to_doubles(weight), to_doubles(other->child("fc1")->parameters[0].tensor));
  EXPECT_TRUE(net->child("fc1")->parameters[0].tensor.same_as(weight));

  StateDict wrong = state_dict(other);
  wrong[0].first = "fc9.weight";
  wrong[1].second = ones({7}, DType::float32, {});
  const std::string error = error_of([&] { load_state_dict(net, wrong); });
  EXPECT_THAT(error, HasSubstr("Missing key(s) in state_dict: fc1.weight"));
  EXPECT_THAT(error, HasSubstr("Unexpected key(s) in state_dict: fc9.weight"));
  EXPECT_THAT(error, HasSubstr("fc1.bias ((7,) into (2,))"));

  const Tensor given = full({2, 2}, 3.0, DType::float32, {});
  const LoadReport report = load_state_dict(net, {{"fc1.weight", given}, {"zzz", given}}, false, true);
  EXPECT_EQ(report.missing.size(), 5u);
  EXPECT_THAT(report.unexpected, ElementsAre("zzz"));
  const Tensor assigned = net->child("fc1")->parameters[0].tensor;
  EXPECT_EQ(assigned.storage(), given.storage());
  EXPECT_TRUE(requires_grad(assigned));
  EXPECT_FALSE(requires_grad(given));
}

TEST_F(ModuleTree, RejectsStateOfAnotherLayout) {
  const ModulePtr net = make("Net");
  layout::ShardedLayout rows{{{2}, {"dp"}, {0, 1}}, {layout::shard(0)}, {4, 2}};
  layout::ShardedLayout more = rows;
  more.sizes = {3, 2};
  const Tensor value = full({2, 2}, 3.0, DType::float32, {});
  EXPECT_THAT(error_of([&] {
                load_state_dict(net, {{"fc1.weight", make_sharded(value, rows)}}, false);
              }),
              HasSubstr("layouts differ: fc1.weight ((4, 2) as (Shard(0)) on dp 2 into plain (2, 2))"));
  Tensor& slot = net->child("fc1")->parameters[0].tensor;
  slot = make_sharded(slot, rows);
  EXPECT_THAT(error_of([&] {
                load_state_dict(net, {{"fc1.weight", value}}, false);
              }),
              HasSubstr("layouts differ: fc1.weight (plain (2, 2) into (4, 2) as (Shard(0)) on dp 2)"));
  EXPECT_THAT(error_of([&] {
                load_state_dict(net, {{"fc1.weight", make_sharded(value, more)}}, false);
              }),
              HasSubstr("layouts differ"));
  load_state_dict(net, {{"fc1.weight", make_sharded(value, rows)}}, false);
  EXPECT_THAT(to_doubles(slot), ElementsAre(3, 3, 3, 3));
}

TEST_F(ModuleTree, RemovesOrZeroesGradients) {
  const ModulePtr net = make("Net");
  backward({ops::sum(net->call(input({2, 2})).tensor())});
  const Tensor bias = net->child("fc3")->parameters[1].tensor;
  zero_grad(net, false);
  EXPECT_THAT(to_doubles(grad(bias)), ElementsAre(0, 0));
  zero_grad(net);
  EXPECT_FALSE(grad(bias).defined());
}

TEST_F(ModuleTree, AParameterThatIsNoLeafKeepsItsHistory) {
  const ModulePtr net = make("Net");
  const Tensor weight = net->child("fc1")->parameters[0].tensor;
  net->add_parameter("tripled", ops::mul(weight, 3.0));
  net->add_parameter("leaf", ones({2}, DType::float32, {}));
  EXPECT_TRUE(requires_grad(net->parameter_slot("leaf")->tensor));
  backward({ops::sum(net->parameter_slot("tripled")->tensor)});
  EXPECT_THAT(to_doubles(grad(weight)), ElementsAre(3, 3, 3, 3));
}

TEST_F(ModuleTree, RejectsWrongNamesAndArguments) {
  EXPECT_THAT(error_of([&] { make("Convolution"); }), HasSubstr("no module `Convolution`"));
  EXPECT_THAT(error_of([&] { make("Linear", {{2}, {}}); }), HasSubstr("argument `out` is missing"));
  EXPECT_THAT(error_of([&] { make("Linear", {{2, 3, true, 4}, {}}); }), HasSubstr("4 arguments given, at most 3"));
  EXPECT_THAT(error_of([&] { make("Linear", {{2, 3}, {{"in", 4}}}); }), HasSubstr("`in` is given twice"));
  EXPECT_THAT(error_of([&] { make("Linear", {{2, 3}, {{"width", 4}}}); }), HasSubstr("unknown argument `width`"));
  EXPECT_THAT(error_of([&] { make("Linear", {{0, 3}, {}}); }), HasSubstr("sizes are at least 1"));
  EXPECT_THAT(error_of([&] { make("Linear", {{"a", 3}, {}}); }), HasSubstr("`in` is a text"));
  EXPECT_THAT(error_of([&] { make("Net")->call(Inputs{}); }), HasSubstr("expected one tensor `x`"));
  EXPECT_THAT(error_of([&] { make("Net")->call(Inputs{}, "backward"); }), HasSubstr("no method `backward`"));
  const ModulePtr net = make("Net");
  EXPECT_THAT(error_of([&] { net->add_child("fc1", make("ReLU")); }),
              HasSubstr("has a child, parameter or buffer `fc1` already"));
  EXPECT_THAT(error_of([&] { net->add_buffer("a.b", Tensor()); }), HasSubstr("`a.b` is not a name"));
}

TEST_F(ModuleTree, NumbersTheModulesOfASequential) {
  const ModulePtr model =
      make("Sequential", {}, {make("Linear", {{2, 3}, {}}), make("ReLU"), make("Linear", {{3, 1}, {}})});
  EXPECT_THAT(names_of(named_parameters(model)), ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
  EXPECT_EQ(model->call(input({5, 2})).tensor().sizes(), (Dims{5, 1}));
  for (const BuilderInfo& info : builders()) EXPECT_TRUE(has_builder(info.name)) << info.name;
}

TEST(Structures, SharesUnchangedLists) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const Tensor a = ones({1}, DType::float32, {}), b = zeros({1}, DType::float32, {});
  const Structure value = Structure::list({a, Structure::map({{"b", b}, {"n", 3}}), Structure::list({1, "x"})});
  const auto found = tensors_of(value);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[1].same_as(b));
  const Structure same = map_tensors(value, [](const Tensor& t) { return t; });
  EXPECT_EQ(&same.items(), &value.items());
  const Structure changed = with_tensors(value, {a, a});
  EXPECT_TRUE(changed.items()[1].entries()[0].second.tensor().same_as(a));
  EXPECT_EQ(&changed.items()[2].items(), &value.items()[2].items());
  EXPECT_EQ(*changed.items()[1].entries()[1].second.get_if<std::int64_t>(), 3);
  EXPECT_THROW(value.tensor(), Error);
}

}  // namespace
}  // namespace lockstep::nn
