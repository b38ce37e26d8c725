// The options of replicate(), and modules that it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using ::testing::HasSubstr;

TEST(ReplicateOptions, MoveInputsToTheDevice) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const auto replicated = [](nn::Structure device_id, const char* device) {
    nn::BuildOptions build;
    build.device = device::device_from_name(device);
    const nn::ModulePtr model = nn::build("Net", {}, build);
    ReplicateOptions options;
    options.device_id = std::move(device_id);
    replicate(model, options);
    return model;
  };
  const auto ids = [](const nn::ModulePtr& model) { return model->applied.at("replicate").settings.at("device_ids"); };
  EXPECT_TRUE(ids(replicated({}, "cpu")).is_none());
  EXPECT_TRUE(ids(replicated("cpu", "cpu")).is_none());
  EXPECT_EQ(*ids(replicated("sim:0", "sim:0")).items()[0].get_if<std::int64_t>(), 0);
  EXPECT_EQ(*ids(replicated(0, "sim:0")).items()[0].get_if<std::int64_t>(), 0);
  EXPECT_THAT(error_of([&] { replicated(nn::Structure::list({0}), "cpu"); }),
              HasSubstr("Expected device_id to be int or torch.device"));
  EXPECT_THAT(error_of([&] { replicated("sim:0", "cpu"); }),
              HasSubstr("device_id is sim:0, but `fc1.weight` is on cpu"));

  const nn::ModulePtr model = replicated(0, "sim:0");
  const device::Device sim = device::device_from_name("sim:0");
  std::vector<device::Device> seen;
  model->add_pre_forward(
      [&](nn::Module&, nn::Inputs& inputs) {
        for (const nn::Structure& value : inputs.positional)
          for (const Tensor& tensor : nn::tensors_of(value)) seen.push_back(tensor.device());
        for (const auto& [name, value] : inputs.named)
          for (const Tensor& tensor : nn::tensors_of(value)) seen.push_back(tensor.device());
        inputs = nn::Inputs{{inputs.positional[0].items()[0]}, {}};
      },
      nn::Module::Place::user);
  const Tensor x = ones({1, 2}, DType::float32, {});
  model->call(nn::Inputs{{nn::Structure::list({x, nn::Structure::map({{"k", x}})})}, {{"named", x}}});
  EXPECT_EQ(seen, std::vector<device::Device>(3, sim));
}

TEST(ReplicateOptions, AreRefusedWithTheModule) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const nn::ModulePtr net = built("Net", 1);
  replicate(net);
  EXPECT_THAT(error_of([&] { replicate(net); }), HasSubstr("replicate has already been applied"));
  const nn::ModulePtr sharded = built("Net", 1);
  sharded->applied["fully_shard"] = {};
  EXPECT_THAT(error_of([&] { replicate(sharded); }),
              HasSubstr("Cannot apply `replicate()` on a Module already managed by `fully_shard`"));
  const nn::ModulePtr mixed = built("Net", 1);
  mixed->child("fc2")->applied["fully_shard"] = {};
  replicate(mixed);
  EXPECT_EQ(mixed->applied.at("replicate").parameter_names,
            (std::vector<std::string>{"fc1.weight", "fc1.bias", "fc3.weight", "fc3.bias"}));
  ReplicateOptions options;
  options.bucket_cap_mb = 0.0;
  EXPECT_THAT(error_of([&] { replicate(built("Net", 1), options); }), HasSubstr("bucket_cap_mb is 0"));
}

}  // namespace
}  // namespace lockstep::parallel
