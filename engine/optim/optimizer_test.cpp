#include "engine/optim/optimizer.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/build.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Optimizers : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  std::vector<Tensor> tensors;

  // Odd sizes, which have full vectors and remainders.
  Group group(const Options& options, std::vector<std::int64_t> sizes = {1, 7, 1000}) {
    Group made;
    made.options = options;
    for (const std::int64_t size : sizes) {
      const Tensor tensor = randn({size}, DType::float32, {});
      set_requires_grad(tensor, true);
      made.parameters.push_back({str("p", tensors.size()), [tensor] { return tensor; }});
      tensors.push_back(tensor);
    }
    return made;
  }
  void draw_gradients() {
    for (const Tensor& tensor : tensors) set_grad(tensor, randn(tensor.sizes(), DType::float32, {}));
  }
};

std::vector<float> floats(const Tensor& tensor) {
  const auto doubles = to_doubles(tensor);
  return {doubles.begin(), doubles.end()};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The formulas of the specification, element by element.
struct ReferenceAdam {
  Options o;
  std::vector<float> p, m, v;
  bool decoupled = false;
  int t = 0;
  void step(const std::vector<float>& gradient) {
    ++t;
    const double c1 = 1 - std::pow(o.beta1, t), c2 = 1 - std::pow(o.beta2, t);
    const auto rate = static_cast<float>(-(o.lr / c1));
    const auto root = static_cast<float>(std::sqrt(c2));
    for (std::size_t i = 0; i < p.size(); ++i) {
      float g = gradient[i];
      if (decoupled)
        p[i] = p[i] * static_cast<float>(1 - o.lr * o.weight_decay);
      else if (o.weight_decay != 0)
        g = std::fma(static_cast<float>(o.weight_decay), p[i], g);
      m[i] = std::fma(static_cast<float>(1 - o.beta1), g - m[i], m[i]);
      v[i] = v[i] * static_cast<float>(o.beta2);
      v[i] = std::fma(static_cast<float>(1 - o.beta2) * g, g, v[i]);
      const float d = std::sqrt(v[i]) / root + static_cast<float>(o.eps);
      p[i] = p[i] + rate * m[i] / d;
    }
  }
};

TEST_F(Optimizers, AdamAndAdamWMatchTheirFormulas) {
  for (const bool decoupled : {false, true})
    for (const double decay : {0.0, 0.1}) {
      tensors.clear();
      Options options;
      options.lr = 1e-2;
      options.weight_decay = decay;
      const auto adam = make_optimizer(decoupled ? "AdamW" : "Adam", {group(options)});
      EXPECT_EQ(adam->type(), decoupled ? "AdamW" : "Adam");
      std::vector<ReferenceAdam> references;
      for (const Tensor& tensor : tensors) {
        const std::vector<float> zero(static_cast<std::size_t>(tensor.num_elements()), 0.f);
        references.push_back({options, floats(tensor), zero, zero, decoupled});
      }
      for (int step = 0; step < 5; ++step) {
        draw_gradients();
        for (std::size_t i = 0; i < tensors.size(); ++i) references[i].step(floats(grad(tensors[i])));
        adam->step();
        for (std::size_t i = 0; i < tensors.size(); ++i)
          EXPECT_EQ(floats(tensors[i]), references[i].p) << adam->type() << " decay " << decay << " step " << step;
      }
    }
}

TEST_F(Optimizers, ApplyDecoupledDecayPerGroup) {
  Options strong, none;
  strong.lr = none.lr = 0.5;
  strong.weight_decay = 0.5;
  const Group first = group(strong, {1}), second = group(none, {1});
  const auto adam = make_optimizer("AdamW", {first, second});
  for (const Tensor& tensor : tensors) {
    raw::fill_(detach(tensor), 8.0);
    set_grad(tensor, zeros({1}, DType::float32, {}));
  }
  adam->step();
  EXPECT_EQ(item(tensors[0]), 6.0);  // 8 * (1 - 0.5 * 0.5); the gradient is 0
  EXPECT_EQ(item(tensors[1]), 8.0);
  EXPECT_EQ(item(grad(tensors[0])), 0.0);
}

TEST_F(Optimizers, SgdMatchesItsFormulas) {
  Options options;
  options.lr = 0.1;
  options.momentum = 0.9;
  options.weight_decay = 0.01;
  const auto sgd = make_optimizer("SGD", {group(options)});
  std::vector<std::vector<float>> p, buffer(tensors.size());
  for (const Tensor& tensor : tensors) p.push_back(floats(tensor));
  for (int step = 0; step < 4; ++step) {
    draw_gradients();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto gradient = floats(grad(tensors[i]));
      buffer[i].resize(p[i].size());
      for (std::size_t k = 0; k < p[i].size(); ++k) {
        const float g = std::fma(0.01f, p[i][k], gradient[k]);
        buffer[i][k] = step == 0 ? g : buffer[i][k] * 0.9f + g;
        p[i][k] = std::fma(-0.1f, buffer[i][k], p[i][k]);
      }
    }
    sgd->step();
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(floats(tensors[i]), p[i]) << step;
  }
}

TEST_F(Optimizers, SgdSubtractsTheScaledGradient) {
  Options options;
  options.lr = 0.5;
  const auto sgd = make_optimizer("SGD", {group(options, {3})});
  raw::fill_(detach(tensors[0]), 1.0);
  set_grad(tensors[0], full({3}, 4.0, DType::float32, {}));
  sgd->step();
  EXPECT_THAT(to_doubles(tensors[0]), ElementsAre(-1, -1, -1));
  EXPECT_TRUE(sgd->state_tensors().empty());
}

TEST_F(Optimizers, SkipParametersWithoutGradients) {
  const auto adam = make_optimizer("Adam", {group({}, {3, 3})});
  const auto before = to_doubles(tensors[1]);
  set_grad(tensors[0], ones({3}, DType::float32, {}));
  adam->step();
  EXPECT_EQ(to_doubles(tensors[1]), before);
  EXPECT_EQ(adam->state_tensors().size(), 2u);
  EXPECT_EQ(adam->state_tensors()[0].first, "p0/exp_avg");
  // Its step count starts later than that of the other parameter.
  set_grad(tensors[1], ones({3}, DType::float32, {}));
  adam->step();
  EXPECT_NEAR(to_doubles(tensors[1])[0], before[0] - 1e-3, 1e-6);
}

TEST_F(Optimizers, ApplyOptionsPerGroup) {
  Options fast, slow;
  fast.lr = 1.0;
  slow.lr = 0.25;
  const Group first = group(fast, {1}), second = group(slow, {1});
  const auto sgd = make_optimizer("SGD", {first, second});
  for (const Tensor& tensor : tensors) {
    raw::fill_(detach(tensor), 0.0);
    set_grad(tensor, ones({1}, DType::float32, {}));
  }
  sgd->step();
  EXPECT_EQ(item(tensors[0]), -1.0);
  EXPECT_EQ(item(tensors[1]), -0.25);
  sgd->zero_grad(false);
  EXPECT_EQ(item(grad(tensors[0])), 0.0);
  sgd->zero_grad();
  EXPECT_FALSE(grad(tensors[1]).defined());
}

TEST_F(Optimizers, UpdateTheTensorInTheSlot) {
  const nn::ModulePtr linear = nn::build("Linear", {{1, 1, false}, {}}, {});
  Options options;
  options.lr = 1.0;
  const auto sgd = make_optimizer("SGD", {group_of(nn::named_parameters(linear), options)});
  const Tensor other = full({1, 1}, 5.0, DType::float32, {});
  linear->parameters[0].tensor = other;
  set_grad(other, ones({1, 1}, DType::float32, {}));
  sgd->step();
  EXPECT_EQ(item(other), 4.0);
}

TEST_F(Optimizers, RestoreStateFromAStateDict) {
  Options options;
  options.lr = 0.05;
  const auto one = make_optimizer("Adam", {group(options, {4, 5})});
  draw_gradients();
  one->step();
  const Optimizer::StateDict saved = one->state_dict();
  EXPECT_EQ(item(saved.state[0].second.at("step")), 1.0);

  const std::vector<Tensor> originals = tensors;
  Options others;
  others.lr = 9.0;
  Group copies;
  copies.options = others;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const Tensor copy = raw::clone(detach(originals[i]));
    set_requires_grad(copy, true);
    copies.parameters.push_back({str("p", i), [copy] { return copy; }});
  }
  const auto two = make_optimizer("Adam", {copies});
  two->init_state();
  EXPECT_EQ(two->state_tensors().size(), 4u);
  EXPECT_EQ(to_doubles(two->state_tensors()[0].second), std::vector<double>(4, 0.0));
  two->load_state_dict(saved);
  EXPECT_EQ(two->groups()[0].options.lr, 0.05);
  draw_gradients();
  for (std::size_t i = 0; i < originals.size(); ++i)
    set_grad(copies.parameters[i].get(), raw::clone(grad(originals[i])));
  one->step();
  two->step();
  for (std::size_t i = 0; i < originals.size(); ++i)
    EXPECT_EQ(to_doubles(originals[i]), to_doubles(copies.parameters[i].get()));

  auto wrong = saved;
  wrong.state[0].second["momentum_buffer"] = ones({4}, DType::float32, {});
  EXPECT_THAT(error_of([&] { two->load_state_dict(wrong); }), HasSubstr("`p0` has no state `momentum_buffer`"));
  wrong = saved;
  wrong.groups[0].first = {"p0", "q"};
  EXPECT_THAT(error_of([&] { two->load_state_dict(wrong); }), HasSubstr("no parameter `p1`"));
  wrong.groups[0].first = {"p0", "p1", "q"};
  EXPECT_THAT(error_of([&] { two->load_state_dict(wrong); }), HasSubstr("another parameter `q`"));
}

// The state of the last parameter is wrong. That of the first differs from the state of the optimizer.
TEST_F(Optimizers, RefuseAStateBeforeTheyWriteAValue) {
  for (const std::string type : {"SGD", "Adam", "AdamW"}) {
    tensors.clear();
    Options options;
    options.lr = 0.05;
    options.momentum = type == "SGD" ? 0.5 : 0.0;
    const auto one = make_optimizer(type, {group(options, {4, 5})});
    const auto fresh = make_optimizer(type, {Group{one->groups()[0].parameters, options}});
    draw_gradients();
    one->step();
    const std::string key = type == "SGD" ? "momentum_buffer" : "exp_avg";
    Optimizer::StateDict other = one->state_dict();
    other.groups[0].second.lr = 9.0;
    for (auto& [name, state] : other.state)
      for (auto& [of_state, tensor] : state) tensor = raw::add(tensor, 1.0);
    const std::vector<double> before = to_doubles(one->state_tensors()[0].second);
    const auto refuses = [&](const std::function<void(std::map<std::string, Tensor>&)>& damage, const char* text) {
      Optimizer::StateDict wrong = other;
      damage(wrong.state[1].second);
      for (const auto& optimizer : {one.get(), fresh.get()})
        EXPECT_THAT(error_of([&] { optimizer->load_state_dict(wrong); }), HasSubstr(text)) << type;
      EXPECT_EQ(to_doubles(one->state_tensors()[0].second), before) << text;
      EXPECT_EQ(item(one->state_dict().state[0].second.at("step")), 1.0) << text;
      EXPECT_EQ(one->groups()[0].options.lr, 0.05) << text;
      EXPECT_TRUE(fresh->state_tensors().empty()) << text;
    };
    refuses([&](auto& state) { state.erase(key); }, "the state of `p1` has no `");
    refuses([&](auto& state) { state.erase("step"); }, "the state of `p1` has no `step`");
    refuses([&](auto& state) { state[key] = Tensor(); }, "is an undefined tensor");
    refuses([&](auto& state) { state[key] = raw::cast(state[key], DType::int64); },
            "give a tensor of a floating-point");
    refuses([&](auto& state) { state[key] = ones({6}, DType::float32, {}); }, "of sizes (6,) into (5,)");
    refuses([&](auto& state) { state[key] = empty({5}, DType::float32, {device::Kind::meta}); }, "it has no values");
    refuses([&](auto& state) { state["step"] = full({}, 0.5, DType::float32, {}); }, "of value 0.5");
    refuses([&](auto& state) { state["step"] = full({}, std::nan(""), DType::float32, {}); }, "is no step count");
    refuses([&](auto& state) { state["step"] = Tensor(); }, "is no step count");
    fresh->load_state_dict(other);
    EXPECT_NE(to_doubles(fresh->state_tensors()[0].second), before);
    EXPECT_EQ(item(fresh->state_dict().state[1].second.at("step")), 2.0);
  }
}

TEST_F(Optimizers, RunHooksBeforeAndAfterTheStep) {
  const auto sgd = make_optimizer("SGD", {group({}, {1})});
  std::vector<std::string> order;
  set_grad(tensors[0], ones({1}, DType::float32, {}));
  const double before = item(tensors[0]);
  sgd->add_before_step([&](Optimizer& o) {
    EXPECT_EQ(&o, sgd.get());
    EXPECT_EQ(comm::current_phase(), comm::Phase::optimizer);
    EXPECT_EQ(item(tensors[0]), before);
    order.push_back("before");
  });
  sgd->add_after_step([&](Optimizer&) {
    EXPECT_NE(item(tensors[0]), before);
    order.push_back("after");
  });
  sgd->step();
  EXPECT_THAT(order, ElementsAre("before", "after"));
  EXPECT_EQ(comm::current_phase(), comm::Phase::other);
}

TEST_F(Optimizers, UpdateStridedTensors) {
  const Tensor base = zeros({2, 3}, DType::float32, {});
  const Tensor tensor = transpose(base, 0, 1);
  set_requires_grad(tensor, true);
  Options options;
  options.lr = 1.0;
  const auto sgd = make_optimizer("SGD", {{{{"t", [tensor] { return tensor; }}}, options}});
  set_grad(tensor, from_values(std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2}, DType::float32, {}));
  sgd->step();
  EXPECT_THAT(to_doubles(tensor), ElementsAre(-1, -2, -3, -4, -5, -6));
  EXPECT_THAT(to_doubles(base), ElementsAre(-1, -3, -5, -2, -4, -6));
}

TEST_F(Optimizers, RejectWrongOptionsAndGroups) {
  EXPECT_THAT(error_of([&] { make_optimizer("RMSprop", {group({})}); }), HasSubstr("no optimizer `RMSprop`"));
  EXPECT_THAT(error_of([&] { make_optimizer("SGD", {}); }), HasSubstr("no parameter groups"));
  EXPECT_THAT(error_of([&] { make_optimizer("SGD", {Group{}}); }), HasSubstr("none of the 1 parameter groups"));
  Options negative;
  negative.lr = -1;
  EXPECT_THAT(error_of([&] { make_optimizer("SGD", {group(negative)}); }), HasSubstr("lr is -1"));
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {infinity, std::nan("")})
    for (double Options::*const option : {&Options::lr, &Options::momentum, &Options::eps, &Options::weight_decay}) {
      Options options;
      options.*option = wrong;
      EXPECT_THAT(error_of([&] { make_optimizer("SGD", {group(options)}); }), HasSubstr(str(" is ", wrong)));
      const auto sgd = make_optimizer("SGD", {group({})});
      Optimizer::StateDict state = sgd->state_dict();
      state.groups[0].second = options;
      EXPECT_THAT(error_of([&] { sgd->load_state_dict(state); }), HasSubstr(str(" is ", wrong)));
    }
  Options beta;
  beta.beta2 = 1;
  EXPECT_THAT(error_of([&] { make_optimizer("Adam", {group(beta)}); }), HasSubstr("beta2 is 1"));
  Group twice = group({}, {1});
  twice.parameters.push_back(twice.parameters[0]);
  EXPECT_THAT(error_of([&] { make_optimizer("SGD", {twice}); }), HasSubstr("is listed more than once"));
}

}  // namespace
}  // namespace lockstep::optim
