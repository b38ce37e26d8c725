#include "engine/optim/grad_scaler.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float inf = std::numeric_limits<float>::infinity();

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class Scaling : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
};

struct OneParameter {
  Tensor tensor;
  std::unique_ptr<Optimizer> sgd;
  explicit OneParameter(Tensor value) : tensor(std::move(value)) {
    set_requires_grad(tensor, true);
    Group group;
    group.options.lr = 1.0;
    group.parameters.push_back({"p", [t = tensor] { return t; }});
    sgd = make_optimizer("SGD", {group});
  }
  void set_gradient(const std::vector<double>& values, DType dtype = DType::float32) const {
    set_grad(tensor, from_values(values, {static_cast<std::int64_t>(values.size())}, dtype, {}));
  }
};

TEST_F(Scaling, UnscalesGradientsBeforeTheStep) {
  const OneParameter p(from_values(std::vector<double>{1, 2, 3}, {3}, DType::float32, {}));
  GradScaler scaler({.init_scale = 8});
  p.set_gradient({8, 16, -8});
  EXPECT_TRUE(scaler.step(*p.sgd));
  EXPECT_THAT(to_doubles(p.tensor), ElementsAre(0, 0, 4));
  EXPECT_THAT(to_doubles(grad(p.tensor)), ElementsAre(1, 2, -1));
}

TEST_F(Scaling, SkipsStepsWithNonFiniteGradients) {
  for (const double bad : {static_cast<double>(inf), -static_cast<double>(inf), std::nan("")}) {
    const OneParameter p(from_values(std::vector<double>{1, 2}, {2}, DType::float32, {}));
    GradScaler scaler({.init_scale = 8, .backoff_factor = 0.25});
    p.set_gradient({1, bad});
    EXPECT_FALSE(scaler.step(*p.sgd));
    EXPECT_THAT(to_doubles(p.tensor), ElementsAre(1, 2));
    scaler.update();
    EXPECT_EQ(scaler.scale(), 2.0);
    EXPECT_EQ(scaler.growth_tracker(), 0);
    p.set_gradient({1, 2});
    EXPECT_TRUE(scaler.step(*p.sgd));
  }
}

TEST_F(Scaling, GrowsAfterGoodUpdatesInARow) {
  const OneParameter p(from_values(std::vector<double>{1}, {1}, DType::float32, {}));
  GradScaler scaler({.init_scale = 4, .growth_factor = 3, .growth_interval = 2});
  std::vector<double> scales;
  for (const double gradient : {1.0, static_cast<double>(inf), 1.0, 1.0, 1.0, 1.0}) {
    p.set_gradient({gradient});
    scaler.step(*p.sgd);
    scaler.update();
    scales.push_back(scaler.scale());
  }
  EXPECT_THAT(scales, ElementsAre(4, 2, 2, 6, 6, 18));
}

TEST_F(Scaling, DoesNotGrowBeyondFloat32) {
  const OneParameter p(from_values(std::vector<double>{1}, {1}, DType::float32, {}));
  GradScaler scaler({.init_scale = std::ldexp(1.0, 127), .growth_interval = 1});
  p.set_gradient({1});
  scaler.step(*p.sgd);
  scaler.update();
  EXPECT_EQ(scaler.scale(), std::ldexp(1.0, 127));
}

TEST_F(Scaling, RejectsCallsOutOfOrder) {
  const OneParameter p(from_values(std::vector<double>{1}, {1}, DType::float32, {}));
  GradScaler scaler;
  EXPECT_THAT(message_of([&] { scaler.update(); }), HasSubstr("No inf checks were recorded prior to update."));
  EXPECT_THAT(message_of([&] { scaler.step(*p.sgd); }), HasSubstr("No inf checks were recorded for this optimizer"));
  p.set_gradient({1});
  scaler.unscale(*p.sgd);
  EXPECT_THAT(message_of([&] { scaler.unscale(*p.sgd); }), HasSubstr("unscale_() has already been called"));
  scaler.step(*p.sgd);
  EXPECT_THAT(message_of([&] { scaler.step(*p.sgd); }), HasSubstr("step() has already been called"));
  EXPECT_THAT(message_of([&] { scaler.unscale(*p.sgd); }), HasSubstr("unscale_() is being called after step()."));
  EXPECT_THAT(message_of([] { GradScaler({.growth_factor = 1}); }), HasSubstr("growth_factor is 1"));
  EXPECT_THAT(message_of([] { GradScaler({.init_scale = std::nan("")}); }), HasSubstr("the scale is"));
  EXPECT_THAT(message_of([] { GradScaler({.init_scale = 1e-60}); }), HasSubstr("the scale is 1e-60"));  // 0 in float32
}

TEST_F(Scaling, RejectsOptionsOutOfRange) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), Error);
  EXPECT_THROW(GradScaler({.init_scale = 1e39}), Error);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.growth_factor = static_cast<double>(inf)}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 0}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), Error);
  EXPECT_NO_THROW(GradScaler({.growth_interval = 1}));
}

TEST_F(Scaling, RestoresItsState) {
  const OneParameter p(from_values(std::vector<double>{1}, {1}, DType::float32, {}));
  GradScaler scaler({.init_scale = 4, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  p.set_gradient({1});
  scaler.step(*p.sgd);
  scaler.update();
  GradScaler other;
  other.load_state_dict(*scaler.state_dict());
  for (GradScaler* one : {&scaler, &other}) {
    p.set_gradient({1});
    one->step(*p.sgd);
    one->update();
    EXPECT_EQ(one->scale(), 12.0);
    p.set_gradient({static_cast<double>(inf)});
    one->step(*p.sgd);
    one->update();
    EXPECT_EQ(one->scale(), 3.0);
  }
  EXPECT_FALSE(GradScaler({.enabled = false}).state_dict().has_value());
}

TEST(ShardedScaling, ReducesOncePerMesh) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int rank) {
    const DeviceMesh mesh({2, 2}, {"replicate", "shard"});
    const Tensor full = from_values(std::vector<double>{1, 2, 3, 4, 5}, {5}, DType::float32, {});
    for (const int bad_rank : {-1, 0, 3}) {
      const OneParameter p(distribute(full, mesh, {layout::replicate(), layout::shard(0)}));
      const Tensor gradient = distribute(full, mesh, {layout::replicate(), layout::shard(0)});
      if (rank == bad_rank) raw::fill_(local_tensor(gradient), inf);
      set_grad(p.tensor, gradient);
      GradScaler scaler({.init_scale = 2});
      const std::size_t before = comm::log().size();
      require(scaler.step(*p.sgd) == (bad_rank < 0), str("a step with ", bad_rank));
      require(comm::log().size() == before + 1, str(comm::log().size() - before, " collectives"));
      const std::vector<double> now = to_doubles(local_tensor(p.tensor));
      const std::vector<double> was = to_doubles(local_shard_of(full, *p.tensor.layout()));
      for (std::size_t i = 0; i < now.size(); ++i)
        require(now[i] == was[i] * (bad_rank < 0 ? 0.5 : 1.0), str(now[i], " of ", was[i]));
      scaler.update();
      require(scaler.scale() == (bad_rank < 0 ? 2.0 : 1.0), str("scale ", scaler.scale()));
    }
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep::optim
