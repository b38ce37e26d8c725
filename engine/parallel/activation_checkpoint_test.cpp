#include "engine/parallel/activation_checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/nn/checkpoint.hpp"
#include "engine/nn/models.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/events.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using nn::Module;
using nn::ModulePtr;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum class Form { none, composable, wrapper, functional };

const Form forms[] = {Form::composable, Form::wrapper, Form::functional};

// A Transformer of three layers with dropout. Each layer is checkpointed in the given form.
ModulePtr transformer(Form form) {
  const ModulePtr model = built("Transformer", 7,
                                {{},
                                 {{"n_layers", 3},
                                  {"vocab_size", 11},
                                  {"dropout_p", 0.2},
                                  {"checkpoint_activations", form == Form::functional}}});
  if (form == Form::composable || form == Form::wrapper)
    for (const nn::ChildSlot& layer : model->child("layers")->children)
      activation_checkpoint(layer.module,
                            {.form = form == Form::wrapper ? CheckpointForm::wrapper : CheckpointForm::composable,
                             .name = "layers." + layer.name});
  return model;
}

Tensor transformer_loss(const ModulePtr& model, int rank) {
  RankContext::current().generator().seed(20 + static_cast<std::uint64_t>(rank));
  const Tensor tokens = randint(0, 11, {2, 8}, DType::int64, {});
  const Tensor y = model->call(tokens).tensor();
  return ops::sum(ops::mul(y, y));
}

int num_recomputed(std::size_t from = 0) {
  int found = 0;
  for (std::size_t i = from; i < events().size(); ++i) found += events()[i].kind == EventKind::recompute;
  return found;
}

class ActivationCheckpoint : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
};

// A module whose forward is a function of the test. It logs its calls.
struct Probe : Module {
  using Body = std::function<Tensor(Probe&, const Tensor&)>;
  explicit Probe(Body forward) : Module("Probe"), body(std::move(forward)) {}
  ModulePtr clone_shell() const override { return std::make_shared<Probe>(body); }
  nn::Structure run(std::string_view, const nn::Inputs& inputs) override {
    log.push_back("run");
    return body(*this, inputs.positional[0].tensor());
  }
  Body body;
  std::vector<std::string> log;
};

std::shared_ptr<Probe> probe() {
  return std::make_shared<Probe>([](Probe&, const Tensor& x) { return ops::tanh(ops::tanh(x)); });
}

void log_hooks(const std::shared_ptr<Probe>& module) {
  for (const auto& [place, who] : {std::pair{Module::Place::api, "api"}, std::pair{Module::Place::user, "user"}}) {
    const auto note = [who = std::string(who), log = &module->log](const char* what) { log->push_back(who + what); };
    module->add_pre_forward([note](Module&, nn::Inputs&) { note(" before"); }, place);
    module->add_post_forward([note](Module&, const nn::Inputs&, nn::Structure&) { note(" after"); }, place);
    module->add_pre_backward([note](Module&) { note(" before backward"); }, place);
    module->add_post_backward([note](Module&) { note(" after backward"); }, place);
  }
}

TEST_F(ActivationCheckpoint, TrainsTransformersBitForBitInEveryForm) {
  const ModulePtr plain = transformer(Form::none);
  backward({transformer_loss(plain, 0)});
  for (const Form form : forms) {
    const ModulePtr model = transformer(form);
    const std::size_t from = events().size();
    backward({transformer_loss(model, 0)});
    const auto expected = nn::named_parameters(plain), found = nn::named_parameters(model);
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(expected[i].path, found[i].path);
      EXPECT_EQ(to_doubles(grad(expected[i].tensor())), to_doubles(grad(found[i].tensor()))) << expected[i].path;
    }
    if (form == Form::functional) continue;  // this form has no name
    ASSERT_EQ(events().size() - from, 3u);
    EXPECT_EQ(events()[from].owner, "layers.2") << "the last layer is recomputed first";
    EXPECT_EQ(events()[from + 2].owner, "layers.0");
  }
}

TEST_F(ActivationCheckpoint, PutsTheComposableFormInsideTheHooksOfApis) {
  for (const bool applied_first : {true, false}) {
    const auto module = probe();
    if (applied_first) activation_checkpoint(module);
    log_hooks(module);
    if (!applied_first) activation_checkpoint(module);
    const Tensor x = rows(3, {2});
    set_requires_grad(x, true);
    const Tensor y = module->call(x).tensor();
    EXPECT_THAT(module->log, ElementsAre("api before", "user before", "run", "user after", "api after"));
    module->log.clear();
    backward({ops::sum(y)});
    EXPECT_THAT(module->log, ElementsAre("api before backward", "user before backward", "user before", "run",
                                         "user after backward", "api after backward"));
  }
}

TEST_F(ActivationCheckpoint, PutsTheWrapperAroundAllHooks) {
  const auto module = probe();
  activation_checkpoint(module, {.form = CheckpointForm::wrapper});
  log_hooks(module);
  const Tensor x = rows(3, {2});
  set_requires_grad(x, true);
  const Tensor y = module->call(x).tensor();
  module->log.clear();
  backward({ops::sum(y)});
  EXPECT_THAT(module->log, ElementsAre("api before backward", "user before backward", "api before", "user before",
                                       "run", "user after backward", "api after backward"));
}

TEST_F(ActivationCheckpoint, RecomputesWithCastInputs) {
  for (const CheckpointForm form : {CheckpointForm::composable, CheckpointForm::wrapper}) {
    std::vector<DType> types;
    const auto module = std::make_shared<Probe>([&types](Probe&, const Tensor& x) {
      types.push_back(x.dtype());
      return ops::tanh(x);
    });
    activation_checkpoint(module, {.form = form});
    module->add_pre_forward([](Module&, nn::Inputs& inputs) {
      inputs.positional[0] = ops::cast(inputs.positional[0].tensor(), DType::bfloat16);
    });
    const Tensor x = rows(3, {2});
    set_requires_grad(x, true);
    backward({ops::sum(module->call(x).tensor())});
    EXPECT_THAT(types, ElementsAre(DType::bfloat16, DType::bfloat16));
    EXPECT_EQ(grad(x).dtype(), DType::float32);
  }
}

TEST_F(ActivationCheckpoint, ReadsParametersThatWereReplacedBeforeBackward) {
  for (const CheckpointForm form : {CheckpointForm::composable, CheckpointForm::wrapper}) {
    const ModulePtr linear = built("Linear", 4, {{3, 3}, {}});
    activation_checkpoint(linear, {.form = form});
    const Tensor original = linear->parameters[0].tensor;
    const Tensor x = rows(3, {2, 3});
    set_requires_grad(x, true);
    backward({ops::sum(ops::tanh(linear->call(x).tensor()))});
    const auto expected = to_doubles(grad(x));
    set_grad(x, Tensor());
    const Tensor y = ops::sum(ops::tanh(linear->call(x).tensor()));
    // As an all-gather does, before backward: replaces the tensor in the slot by one of equal values and frees the old.
    const Tensor again = raw::clone(detach(original));
    set_requires_grad(again, true);
    original.storage()->release();
    linear->parameters[0].tensor = again;
    backward({y});
    EXPECT_EQ(to_doubles(grad(x)), expected);
    EXPECT_TRUE(grad(original).defined()) << "gradients go to the tensor of the forward";
    EXPECT_FALSE(grad(again).defined());
  }
}

TEST_F(ActivationCheckpoint, AppliesOnceAndKeepsNames) {
  const ModulePtr model = built("MLP", 1, {{4}, {}});
  const auto paths = [&] {
    std::string all;
    for (const auto& parameter : nn::named_parameters(model)) all += parameter.path + " ";
    for (const auto& module : nn::named_modules(model)) all += module.path + " ";
    for (const auto& [name, tensor] : nn::state_dict(model)) all += name + " ";
    return all;
  };
  const std::string before = paths();
  activation_checkpoint(model->children[0].module, {.form = CheckpointForm::wrapper});
  activation_checkpoint(model);
  EXPECT_EQ(paths(), before);
  EXPECT_TRUE(is_applied(*model, activation_checkpoint_name));
  EXPECT_FALSE(is_applied(*nn::clone_module(model), activation_checkpoint_name));
  for (const CheckpointForm form : {CheckpointForm::composable, CheckpointForm::wrapper})
    EXPECT_THAT(error_of([&] { activation_checkpoint(model, {.form = form}); }),
                HasSubstr("Each distinct composable distributed API can only be applied to a module once. "
                          "activation_checkpoint has already been applied to the following module: MLP("));
}

TEST_F(ActivationCheckpoint, NestsRegions) {
  const ModulePtr plain = built("MLP", 1, {{4}, {}}), model = built("MLP", 1, {{4}, {}});
  activation_checkpoint(model, {.form = CheckpointForm::wrapper});
  for (const nn::ChildSlot& child : model->children) activation_checkpoint(child.module);
  const auto train = [&](const ModulePtr& module) {
    const Tensor y = module->call(rows(3, {2, 4})).tensor();
    backward({ops::sum(ops::mul(y, y))}, {}, true);
    backward({ops::sum(ops::mul(y, y))});
  };
  train(plain);
  train(model);
  const auto expected = nn::named_parameters(plain), found = nn::named_parameters(model);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(to_doubles(grad(expected[i].tensor())), to_doubles(grad(found[i].tensor()))) << expected[i].path;
}

TEST_F(ActivationCheckpoint, RecomputesRegisteredMethodsAndNamedInputs) {
  const auto module =
      std::make_shared<nn::Composed>("Two", [](nn::Composed&, const nn::Inputs&) { return nn::Structure(); });
  int runs = 0;
  module->add_method("other", [&runs](nn::Composed&, const nn::Inputs& inputs) -> nn::Structure {
    ++runs;
    const nn::Structure& pair = inputs.named[0].second;
    return nn::Structure::map({{"y", ops::mul(ops::tanh(inputs.positional[0].tensor()), pair.items()[1].tensor())}});
  });
  activation_checkpoint(module);
  module->register_forward_method("other");
  const Tensor x = rows(3, {2}), factor = rows(4, {2});
  set_requires_grad(x, true);
  nn::Inputs inputs{{x}, {{"pair", nn::Structure::list({"text", factor})}}};
  const nn::Structure y = module->call(inputs, "other");
  backward({ops::sum(y.entries()[0].second.tensor())});
  EXPECT_EQ(runs, 2);
  const auto found = to_doubles(grad(x));
  set_grad(x, Tensor());
  backward({ops::sum(ops::mul(ops::tanh(x), factor))});
  EXPECT_EQ(found, to_doubles(grad(x)));
}

class ReplicatedCheckpoint : public ::testing::TestWithParam<int> {};

TEST_P(ReplicatedCheckpoint, GivesTheMeanGradientsInEveryOrderAndForm) {
  const int world_size = GetParam();
  for (const Form form : forms)
    for (const bool replicate_first : {false, true})
      EXPECT_EQ(run(world_size,
                    [&](int rank) {
                      const auto expected = mean_gradients(transformer(Form::none), world_size, transformer_loss);
                      const ModulePtr model = transformer(replicate_first ? Form::none : form);
                      replicate(model, {});
                      if (replicate_first) {
                        if (form == Form::functional) return;
                        for (const nn::ChildSlot& layer : model->child("layers")->children)
                          activation_checkpoint(
                              layer.module,
                              {.form = form == Form::wrapper ? CheckpointForm::wrapper : CheckpointForm::composable});
                      }
                      for (int step = 0; step < 2; ++step) {
                        const std::size_t from = events().size();
                        backward({transformer_loss(model, rank)});
                        const std::string differs = differing_gradient(model, expected);
                        require(differs.empty(), differs);
                        require(form == Form::functional || num_recomputed(from) == 3,
                                str(num_recomputed(from), " recomputations"));
                        nn::zero_grad(model);
                      }
                    }),
                "")
          << static_cast<int>(form) << replicate_first;
}

// The checkpoint is applied to the replicated module itself.
TEST_P(ReplicatedCheckpoint, CoversTheReplicatedModule) {
  const int world_size = GetParam();
  for (const CheckpointForm form : {CheckpointForm::composable, CheckpointForm::wrapper})
    for (const bool replicate_first : {false, true})
      EXPECT_EQ(run(world_size,
                    [&](int rank) {
                      const auto loss = [](const ModulePtr& of, int at) {
                        return loss_of(of, 30 + static_cast<std::uint64_t>(at));
                      };
                      const auto expected = mean_gradients(built("Net", 5), world_size, loss);
                      const ModulePtr model = built("Net", 5);
                      if (replicate_first) replicate(model, {});
                      activation_checkpoint(model, {.form = form});
                      if (!replicate_first) replicate(model, {});
                      for (int step = 0; step < 2; ++step) {
                        backward({loss(model, rank)});
                        const std::string differs = differing_gradient(model, expected);
                        require(differs.empty(), str("step ", step, ": ", differs));
                        require(num_recomputed() == step + 1, str(num_recomputed(), " recomputations"));
                        nn::zero_grad(model);
                      }
                    }),
                "")
          << static_cast<int>(form) << replicate_first;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReplicatedCheckpoint, ::testing::Values(1, 2));

}  // namespace
}  // namespace lockstep::parallel
