// Training steps of ranks with a GPU each, over the stand-ins of CUDA and NCCL: no step makes a communicator, and a
// steady step creates nothing on the device. The host waits for no stream; units of sharded parameters wait for events.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_gpu.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/tensor_parallel.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using comm::testing_gpu::gpu;
using comm::testing_nccl::RecordingNccl;
using ::testing::Each;
using testing::require;

constexpr int world_size = 4;

struct Way {
  std::string name;
  std::function<void(const nn::ModulePtr&)> apply;
};

DeviceMesh cube() { return DeviceMesh({1, 2, 2}, {"pp", "dp", "tp"}); }

void shard_layers(const nn::ModulePtr& model, const FullyShardOptions& options) {
  for (const nn::ChildSlot& layer : model->children) fully_shard({layer.module}, options);
  fully_shard({model}, options);
}

// The meshes are slices, also along several axes, and nothing but the APIs prepares them.
const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"replicate", [](const nn::ModulePtr& model) { replicate(model, {}); }},
      {"replicate_over_a_slice",
       [](const nn::ModulePtr& model) {
         ReplicateOptions options;
         options.mesh = cube().slice({"dp", "tp"});
         replicate(model, options);
       }},
      {"fully_shard", [](const nn::ModulePtr& model) { shard_layers(model, {}); }},
      {"fully_shard_hybrid",
       [](const nn::ModulePtr& model) {
         FullyShardOptions options;
         options.mesh = cube().slice({"dp", "tp"});
         shard_layers(model, options);
       }},
      {"flat_shard", [](const nn::ModulePtr& model) { flat_shard(model, FlatShardOptions{.unit_types = {"MLP"}}); }},
      {"flat_shard_hybrid",
       [](const nn::ModulePtr& model) {
         flat_shard(model, FlatShardOptions{.mesh = cube().slice({"dp", "tp"}),
                                            .strategy = FlatStrategy::hybrid_shard,
                                            .unit_types = {"MLP"}});
       }},
      {"tensor_parallel",
       [](const nn::ModulePtr& model) {
         std::vector<PlannedModule> plan;
         for (const nn::ChildSlot& layer : model->children) {
           plan.push_back({layer.name + ".in_proj", layer.module->child("in_proj"), Colwise{}});
           plan.push_back({layer.name + ".out_proj", layer.module->child("out_proj"), Rowwise{}});
         }
         tensor_parallel(model, cube().slice({"tp"}), plan);
         FullyShardOptions options;
         options.mesh = cube().slice({"dp"});
         shard_layers(model, options);
       }},
  };
  return all;
}

// What all ranks have counted so far. They wait for each other, so that none is in its next step.
std::map<std::string, int> counts(RecordingNccl& nccl) {
  auto& cuda = dynamic_cast<device::cuda::RecordingCalls&>(device::cuda::calls());
  comm::exchange(comm::world_group(), "", "all have come");
  std::map<std::string, int> all = cuda.counts();
  all["create"] = nccl.count("create");
  comm::exchange(comm::world_group(), "", "all have counted");
  return all;
}

void require_no_more(const std::map<std::string, int>& before, const std::map<std::string, int>& after,
                     const std::vector<std::string>& calls) {
  const auto at = [](const std::map<std::string, int>& all, const std::string& call) {
    const auto found = all.find(call);
    return found == all.end() ? 0 : found->second;
  };
  for (const std::string& call : calls)
    require(at(after, call) == at(before, call), str(at(after, call) - at(before, call), " calls of ", call));
}

class StepOnGpus : public ::testing::TestWithParam<Way> {};

TEST_P(StepOnGpus, MakesNothingAndWaitsForNoStream) {
  const auto failures = comm::testing_gpu::run_on_gpus(
      world_size,
      [&](int rank, RecordingNccl& nccl) {
        RankContext::current().generator().seed(1);
        const nn::ModulePtr model = nn::build("MLPStack", {{8}, {}}, {DType::float32, gpu});
        GetParam().apply(model);
        const auto adam = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), {})});
        const Tensor x = raw::to_device(testing::rows(static_cast<std::uint64_t>(rank / 2), {4, 8}), gpu);
        const std::map<std::string, int> wrapped = counts(nccl);
        require(wrapped.at("create") > 0, "no communicator is made");
        for (int step = 0; step < 5; ++step) {
          const std::map<std::string, int> begun = counts(nccl);
          adam->zero_grad();
          backward({ops::sum(model->call(x).tensor())});
          adam->step();
          // Otherwise the host would be ahead by any number of steps.
          device::current_stream(gpu).record().synchronize();
          const std::map<std::string, int> ended = counts(nccl);
          require_no_more(wrapped, ended, {"create"});
          if (step >= 3) require_no_more(begun, ended, {"allocate", "create_stream", "pin", "synchronize_stream"});
          // Events are used again. Their number grows with the work in flight, which depends on time.
          const int recorded = ended.at("record_event") - begun.at("record_event");
          const int made = ended.at("create_event") - begun.at("create_event");
          require(recorded > 0, "the step does nothing on the device");
          require(step < 3 || 10 * made <= recorded, str(made, " new events of ", recorded));
        }
      },
      10.0);
  EXPECT_THAT(failures, Each(""));
}

INSTANTIATE_TEST_SUITE_P(, StepOnGpus, ::testing::ValuesIn(ways()), [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace lockstep::parallel
