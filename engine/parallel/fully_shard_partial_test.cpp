// Gradients that are partial sums over tensor parallelism: the group reduces them in its post-backward, under its own
// name, and not before gradients are synchronized.
#include <gtest/gtest.h>

#include "engine/autograd/ops_sharded.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;

// A LayerNorm over tokens that the ranks of tensor parallelism share.
struct Norm : nn::Module {
  explicit Norm(DeviceMesh mesh) : Module("Norm"), tp(std::move(mesh)) {}
  nn::ModulePtr clone_shell() const override { return std::make_shared<Norm>(tp); }
  nn::Structure run(std::string_view, const nn::Inputs& inputs) override {
    const Tensor x = ops::distribute(inputs.positional[0].tensor(), tp, {layout::shard(0)});
    return ops::full_tensor(child("norm")->call(ops::add(x, child("norm")->call(x).tensor())).tensor());
  }
  DeviceMesh tp;
};

Tensor norm_loss(const nn::ModulePtr& module, std::uint64_t seed) {
  const Tensor y = module->call(rows(seed, {5, 4})).tensor();
  return ops::sum(ops::mul(y, ops::mul(y, y)));
}

// The all-reduces over tensor parallelism since entry `from` of the log; all have the owner.
int reductions(std::size_t from, const std::string& owner) {
  int found = 0;
  for (std::size_t i = from; i < comm::log().size(); ++i) {
    const auto& entry = comm::log()[i];
    if (entry.operation != Operation::all_reduce || entry.family != Family::tensor_parallel) continue;
    require(entry.owner == owner, str("the owner of an all-reduce is `", entry.owner, "`"));
    require(entry.phase == comm::Phase::backward, "an all-reduce outside backward");
    ++found;
  }
  return found;
}

TEST(FullyShardPartialGradients, AreReducedOncePerParameterWhenTheGroupIs) {
  EXPECT_EQ(run(4,
                [](int rank) {
                  const DeviceMesh mesh({2, 2}, {"dp", "tp"});
                  const auto model = std::make_shared<Norm>(mesh.slice({"tp"}));
                  model->add_child("norm", built("LayerNorm", 1, {{4}, {}}));
                  const auto plain = std::make_shared<Norm>(DeviceMesh({1}, {"tp"}, {rank}));
                  plain->add_child("norm", built("LayerNorm", 1, {{4}, {}}));
                  for (const nn::ModulePtr& module : {nn::ModulePtr(model), nn::ModulePtr(plain)})
                    for (const nn::NamedParameter& parameter : nn::named_parameters(module)) {
                      Tensor& slot = parameter.owner->parameters[parameter.slot].tensor;
                      slot =
                          distribute(detach(slot), std::dynamic_pointer_cast<Norm>(module)->tp, {layout::replicate()});
                      set_requires_grad(slot, true);
                    }
                  FullyShardOptions options;
                  options.mesh = mesh.slice({"dp"});
                  options.name = "model";
                  fully_shard({model}, options);
                  for (std::uint64_t microbatch = 0; microbatch < 3; ++microbatch) {
                    ShardFlags flags;
                    flags.requires_gradient_sync = microbatch == 2;
                    set_flags(model, flags);
                    const Tensor loss = norm_loss(model, 10 * microbatch + static_cast<std::uint64_t>(rank / 2));
                    const std::size_t from = comm::log().size();
                    backward({loss});
                    const int wanted = microbatch == 2 ? 2 : 0;  // weight and bias, each used twice
                    require(reductions(from, "model") == wanted, str(reductions(from, "model"), " all-reduces"));
                  }
                  for (std::uint64_t microbatch = 0; microbatch < 3; ++microbatch)
                    for (std::uint64_t dp = 0; dp < 2; ++dp) backward({norm_loss(plain, 10 * microbatch + dp)});
                  const auto ours = nn::named_parameters(model), theirs = nn::named_parameters(plain);
                  for (std::size_t i = 0; i < ours.size(); ++i) {
                    const std::vector<double> mine = to_doubles(full_tensor(grad(ours[i].trained()))),
                                              sums = to_doubles(local_tensor(grad(theirs[i].tensor())));
                    for (std::size_t k = 0; k < mine.size(); ++k)
                      require(std::abs(mine[k] - sums[k] / 2) < 1e-4,
                              str(ours[i].path, "[", k, "] is ", mine[k], ", not ", sums[k] / 2));
                  }
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
