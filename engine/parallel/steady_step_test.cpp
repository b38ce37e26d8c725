// The memory of a repeated training step: it allocates no new memory, and its peak is little more than necessary.
#include <array>
#include <memory>

#include <gtest/gtest.h>

#include "engine/device/device.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using device::memory_stats;
using device::MemoryStats;
using device::Purpose;

std::int64_t current(Purpose purpose) { return memory_stats().current[static_cast<std::size_t>(purpose)]; }

struct Setting {
  int world_size = 1;
  bool as_view = false;
  bool set_to_none = true;
};

// Trains a Transformer with Adam for six steps. From the third step on no pool may grow, each step must use as much
// memory as the step before to the byte, and the peak must be close to the sum of parameters, gradients, optimizer
// state and saved activations.
void train(const Setting& setting) {
  nn::Inputs arguments;
  arguments.named = {{"n_layers", 3}, {"dim", 64}, {"vocab_size", 256}, {"max_seq_len", 32}, {"dropout_p", 0.0}};
  const nn::ModulePtr model = built("Transformer", 3, arguments);
  if (setting.world_size > 1) {
    ReplicateOptions options;
    options.gradient_as_bucket_view = setting.as_view;
    options.bucket_cap_mb = 0.25;
    replicate(model, options);
  }
  const auto adam = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), {})});
  MemoryStats before;
  std::array<std::int64_t, device::num_purposes> peaks_before{};
  for (int step = 1; step <= 6; ++step) {
    std::array<std::unique_ptr<device::MemoryWindow>, device::num_purposes> windows;
    for (unsigned i = 0; i < windows.size(); ++i) windows[i] = std::make_unique<device::MemoryWindow>(1u << i);
    const device::MemoryWindow all;
    const Tensor tokens = randint(0, 256, {4, 32}, DType::int64, {});
    adam->zero_grad(setting.set_to_none);
    std::int64_t saved = 0;
    {
      const Tensor loss = ops::sum(model->call(tokens).tensor());
      saved = current(Purpose::activation);
      backward({loss});
    }
    const std::int64_t gradients = current(Purpose::gradient);
    adam->step();
    const MemoryStats now = memory_stats();
    std::array<std::int64_t, device::num_purposes> peaks{};
    for (std::size_t i = 0; i < windows.size(); ++i) peaks[i] = windows[i]->peak_bytes();
    if (step >= 3) {
      const std::string where = str("rank ", RankContext::current().rank(), ", step ", step, ": ");
      require(now.num_pool_misses == before.num_pool_misses,
              str(where, "the pools grew ", now.num_pool_misses - before.num_pool_misses, " times"));
      require(step == 3 || (now.current == before.current && peaks == peaks_before),
              str(where, "memory by purpose differs from the step before"));
      const std::int64_t parameters = current(Purpose::parameter), state = current(Purpose::optimizer);
      require(parameters > 0 && gradients == parameters && state == 2 * parameters && saved > parameters,
              str(where, "parameters ", parameters, ", gradients ", gradients, ", optimizer ", state, ", saved ", saved,
                  " bytes: unexpected sizes"));
      const std::int64_t held = parameters + gradients + state + saved;
      require(static_cast<double>(all.peak_bytes()) <= 1.15 * static_cast<double>(held),
              str(where, "a peak of ", all.peak_bytes(), " bytes where ", held, " are necessary"));
    }
    before = now;
    peaks_before = peaks;
  }
}

TEST(SteadyStep, AllocatesNothingAndPeaksNearItsNeeds) {
  for (const int world_size : {1, 2})
    for (const bool as_view : {false, true})
      for (const bool set_to_none : {false, true})
        EXPECT_EQ(run(world_size,
                      [&](int) {
                        train({world_size, as_view, set_to_none});
                      }),
                  "")
            << "world_size " << world_size << ", as_view " << as_view << ", set_to_none " << set_to_none;
}

// Units of flat_shard and groups of fully_shard: from the third step on no pool may grow.
void train_sharded(bool flat) {
  nn::Inputs arguments;
  arguments.named = {{"n_layers", 3}, {"dim", 64}, {"vocab_size", 256}, {"max_seq_len", 32}, {"dropout_p", 0.0}};
  const nn::ModulePtr model = built("Transformer", 3, arguments);
  if (flat) {
    flat_shard(model, FlatShardOptions{.unit_types = {"TransformerBlock"}});
  } else {
    for (const nn::ChildSlot& block : model->child("layers")->children) fully_shard({block.module});
    fully_shard({model});
  }
  const auto adam = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), {})});
  MemoryStats before;
  for (int step = 1; step <= 6; ++step) {
    const Tensor tokens = randint(0, 256, {4, 32}, DType::int64, {});
    adam->zero_grad();
    backward({ops::sum(model->call(tokens).tensor())});
    adam->step();
    const MemoryStats now = memory_stats();
    if (step >= 3) {
      require(now.num_pool_misses == before.num_pool_misses, str("step ", step, ": the pools grew"));
      require(now.current == before.current, str("step ", step, ": memory by purpose differs from the step before"));
      require(current(Purpose::gathered) == 0, "unsharded parameters are left");
    }
    before = now;
  }
}

TEST(SteadyStep, ShardedTrainingAllocatesNothing) {
  for (const int world_size : {2, 3})
    for (const bool flat : {false, true})
      EXPECT_EQ(run(world_size, [flat](int) { train_sharded(flat); }), "")
          << world_size << " ranks, " << (flat ? "flat_shard" : "fully_shard");
}

}  // namespace
}  // namespace lockstep::parallel
