// fully_shard of parameters that tensor parallelism has sharded, on meshes of two and three axes. The witness is the
// plain model on every rank, with the mean of the gradients over the ranks of data parallelism.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/ops_sharded.hpp"
#include "engine/device/order.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;

// Linear, relu, Linear. With a mesh of tensor parallelism its weights are sharded over it: fc1 by rows, fc2 by columns.
struct Mlp : nn::Module {
  Mlp() : Module("Mlp") {}
  nn::ModulePtr clone_shell() const override { return std::make_shared<Mlp>(); }
  nn::Structure run(std::string_view, const nn::Inputs& inputs) override {
    Tensor x = inputs.positional[0].tensor();
    if (tp) x = ops::distribute(x, *tp, {layout::replicate()});
    x = child("fc2")->call(ops::relu(child("fc1")->call(x).tensor())).tensor();
    return ops::full_tensor(x);
  }
  std::optional<DeviceMesh> tp;
};

void distribute_parameter(const nn::ModulePtr& module, const char* name, const DeviceMesh& mesh,
                          const Placements& placements) {
  Tensor& slot = module->parameter_slot(name)->tensor;
  const Tensor made = distribute(detach(slot), mesh, placements);
  made.set_name(slot.name());
  set_requires_grad(made, true);
  slot = made;
}

nn::ModulePtr mlp(std::int64_t width, std::uint64_t seed, const DeviceMesh* tp = nullptr) {
  RankContext::current().generator().seed(seed);
  const auto module = std::make_shared<Mlp>();
  for (const char* name : {"fc1", "fc2"}) module->add_child(name, nn::build("Linear", {{width, width}, {}}, {}));
  nn::name_parameters(module);
  if (!tp) return module;
  module->tp = *tp;
  distribute_parameter(module->child("fc1"), "weight", *tp, {layout::shard(0)});
  distribute_parameter(module->child("fc1"), "bias", *tp, {layout::shard(0)});
  distribute_parameter(module->child("fc2"), "weight", *tp, {layout::shard(1)});
  distribute_parameter(module->child("fc2"), "bias", *tp, {layout::replicate()});
  return module;
}

Tensor mlp_loss(const nn::ModulePtr& module, std::int64_t width, std::uint64_t seed) {
  const Tensor y = module->call(rows(seed, {5, width})).tensor();
  return ops::mean(ops::mul(y, y));
}

std::string differs(const std::string& what, const std::vector<double>& ours, const std::vector<double>& theirs) {
  if (ours.size() != theirs.size()) return str(what, " has ", ours.size(), " elements, not ", theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    if (!(std::abs(ours[i] - theirs[i]) <= 1e-6 + 1e-5 * std::abs(theirs[i])))
      return str(what, "[", i, "] is ", ours[i], ", not ", theirs[i]);
  return "";
}

// The first difference between the sharded model and the plain one: in the full tensors of parameters and gradients, or
// in the shard of this rank. `has_gradients`: the plain gradients are the mean over the data-parallel ranks.
void require_equal(const nn::ModulePtr& sharded, const nn::ModulePtr& plain, bool has_gradients) {
  const auto ours = nn::named_parameters(sharded), theirs = nn::named_parameters(plain);
  require(ours.size() == theirs.size(), "other parameters");
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const std::string& path = ours[i].path;
    const Tensor mine = ours[i].trained(), full = detach(theirs[i].tensor());
    require(mine.is_sharded() && mine.layout()->sizes == full.sizes(), path + " is not sharded");
    const auto compare = [&](const std::string& what, const Tensor& shard, const Tensor& expected) {
      const std::string whole = differs(what, to_doubles(full_tensor(shard)), to_doubles(expected));
      require(whole.empty(), whole);
      const std::string local = differs(str("the shard of ", what), to_doubles(local_tensor(shard)),
                                        to_doubles(local_shard_of(expected, *shard.layout())));
      require(local.empty(), local);
    };
    compare(path, detach(mine), full);
    if (!has_gradients) continue;
    require(grad(mine).defined(), path + " has no gradient");
    compare(path + ".grad", grad(mine), grad(theirs[i].tensor()));
  }
}

// Sets the gradients of a plain model to the mean over `num_ranks` ranks of data parallelism.
void set_mean_gradients(const nn::ModulePtr& plain, int num_ranks,
                        const std::function<Tensor(const nn::ModulePtr&, int)>& loss) {
  const auto means = mean_gradients(plain, num_ranks, loss);
  const auto parameters = nn::named_parameters(plain);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& tensor = parameters[i].tensor();
    set_grad(tensor,
             from_values(std::vector<double>(means[i].begin(), means[i].end()), tensor.sizes(), tensor.dtype(), {}));
  }
}

std::unique_ptr<optim::Optimizer> optimizer_of(const std::string& type, const nn::ModulePtr& module) {
  optim::Options options;
  options.lr = 0.05;
  return optim::make_optimizer(type, {optim::group_of(nn::named_parameters(module), options)});
}

struct Setting {
  std::vector<int> sizes;
  std::vector<std::string> names;  // the last is tp
  std::int64_t width;
};
std::string text(const ::testing::TestParamInfo<Setting>& info) {
  std::string text = str("width", info.param.width);
  for (std::size_t i = 0; i < info.param.sizes.size(); ++i) text += str("_", info.param.names[i], info.param.sizes[i]);
  return text;
}

class FullyShardTensorParallel : public ::testing::TestWithParam<Setting> {};

TEST_P(FullyShardTensorParallel, TrainsAsThePlainModel) {
  const Setting& setting = GetParam();
  int world_size = 1;
  for (const int size : setting.sizes) world_size *= size;
  for (const char* type : {"SGD", "Adam"})
    EXPECT_EQ(run(world_size,
                  [&](int rank) {
                    device::set_order_check(true);
                    const DeviceMesh mesh(setting.sizes, setting.names);
                    const DeviceMesh tp = mesh.slice({"tp"});
                    std::vector<std::string> outer(setting.names.begin(), setting.names.end() - 1);
                    const int num_replicas = mesh.num_ranks() / tp.num_ranks();
                    const nn::ModulePtr plain = mlp(setting.width, 7), model = mlp(setting.width, 7, &tp);
                    FullyShardOptions options;
                    options.mesh = mesh.slice(outer);
                    options.name = "fc1";
                    fully_shard({model->child("fc1")}, options);
                    options.name = "root";
                    fully_shard({model}, options);
                    require_equal(model, plain, false);
                    const auto ours = optimizer_of(type, model), theirs = optimizer_of(type, plain);
                    const auto number = static_cast<std::uint64_t>(rank / tp.num_ranks());
                    for (std::uint64_t step = 0; step < 3; ++step) {
                      set_mean_gradients(plain, num_replicas, [&](const nn::ModulePtr& copy, int of) {
                        return mlp_loss(copy, setting.width, 100 * step + static_cast<std::uint64_t>(of));
                      });
                      backward({mlp_loss(model, setting.width, 100 * step + number)});
                      require_equal(model, plain, true);
                      for (const auto& optimizer : {ours.get(), theirs.get()}) {
                        optimizer->step();
                        optimizer->zero_grad(step % 2 == 0);
                      }
                      require_equal(model, plain, false);
                    }
                    require(device::order_violations().empty(),
                            device::order_violations().empty() ? "" : device::order_violations()[0].message);
                  }),
              "")
        << type;
}
const std::vector<std::string> two = {"dp", "tp"}, three = {"replicate", "shard", "tp"};
INSTANTIATE_TEST_SUITE_P(Meshes, FullyShardTensorParallel,
                         ::testing::Values(Setting{{2, 2}, two, 3}, Setting{{2, 2}, two, 16}, Setting{{2, 2}, two, 17},
                                           Setting{{2, 4}, two, 3}, Setting{{4, 2}, two, 17}, Setting{{3, 2}, two, 5},
                                           Setting{{2, 3}, two, 7}, Setting{{5, 1}, two, 4}, Setting{{1, 3}, two, 4},
                                           Setting{{2, 2, 2}, three, 3}, Setting{{2, 2, 2}, three, 17},
                                           Setting{{1, 2, 2}, three, 16}, Setting{{2, 3, 2}, three, 9}),
                         text);

}  // namespace
}  // namespace lockstep::parallel
