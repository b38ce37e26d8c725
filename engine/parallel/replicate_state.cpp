#include "engine/parallel/replicate_state.hpp"

#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/checkpoint.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/placement.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/host_tensors.hpp"
#include "engine/parallel/shard_collect.hpp"
#include "engine/parallel/start_up.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

constexpr double max_bucket_mb = 1 << 20;  // a larger cap is a mistake, and the bytes of 2^43 MiB overflow

using nn::ModulePtr;
using nn::NamedParameter;
using nn::Structure;

// ---- replicated tensors ----
struct Covered {
  std::vector<NamedParameter> parameters;
  std::vector<nn::NamedBuffer> buffers;
};

// Collects the parameters and buffers below a module, except those of ignored modules and of modules that another API
// manages. A shared parameter is collected once.
class Collector {
 public:
  explicit Collector(const std::vector<ModulePtr>& ignored) {
    for (const ModulePtr& module : ignored) seen_.insert(module.get());
  }
  Covered collect(const ModulePtr& root) {
    visit(root, "", true);
    return std::move(covered_);
  }

 private:
  void visit(const ModulePtr& module, const std::string& prefix, bool is_root) {
    if (!seen_.insert(module.get()).second) return;
    if (is_sharded(*module)) return;
    if (!is_root && is_applied(*module, replicate_name)) return;
    for (std::size_t slot = 0; slot < module->parameters.size(); ++slot) {
      const auto& [name, tensor, sharded, num_draws, listed] = module->parameters[slot];
      if (tensor.defined() && tensors_.insert(&tensor.impl()).second)
        covered_.parameters.push_back({prefix + name, module, slot});
    }
    for (std::size_t slot = 0; slot < module->buffers.size(); ++slot)
      if (module->buffers[slot].tensor.defined())
        covered_.buffers.push_back({prefix + module->buffers[slot].name, module, slot});
    for (const nn::ChildSlot& child : module->children) visit(child.module, prefix + child.name + ".", false);
  }
  std::set<const nn::Module*> seen_;
  std::set<const TensorImpl*> tensors_;
  Covered covered_;
};

std::vector<std::string> names_of(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  names.reserve(parameters.size());
  for (const NamedParameter& parameter : parameters) names.push_back(parameter.path);
  return names;
}

// ---- device ids ----
// The cpu if no id is given.
device::Device device_of(const Structure& device_id, const std::vector<NamedParameter>& parameters) {
  device::Device device;
  if (device_id.is_none()) return device;
  if (const auto* text = device_id.get_if<std::string>()) {
    device = device::device_from_name(*text);
  } else if (const auto* index = device_id.get_if<std::int64_t>()) {
    if (!parameters.empty()) device.kind = parameters[0].tensor().device().kind;
    device.index = checked_int(*index, "replicate: device_id");
  } else {
    throw Error(str("Expected device_id to be int or torch.device, but got ", device_id.kind()),
                "give the index of a device, or its name");
  }
  const auto* number = device_id.get_if<std::int64_t>();
  for (const NamedParameter& parameter : parameters)
    if (!(parameter.tensor().device() == device))
      throw Error(str("replicate: device_id is ", number ? str(*number) : device::to_text(device), ", but `",
                      parameter.path, "` is on ", device::to_text(parameter.tensor().device())),
                  "move the module to the device first");
  return device;
}

}  // namespace

ReplicateState::ReplicateState(const ModulePtr& module, const ReplicateOptions& options)
    : module_(module), options_(options), mesh_(options.mesh ? *options.mesh : DeviceMesh::world()) {
  const Covered covered = Collector(options.ignored).collect(module);
  parameter_names_ = names_of(covered.parameters);
  device_ = device_of(options.device_id, covered.parameters);
  if (options.bucket_cap_mb && (!(*options.bucket_cap_mb > 0) || *options.bucket_cap_mb > max_bucket_mb))
    throw Error(str("replicate: bucket_cap_mb is ", *options.bucket_cap_mb),
                str("it must be above 0, and at most ", max_bucket_mb));
  owner_ = options.name.empty() ? module->type() : options.name;
  for (const NamedParameter& parameter : covered.parameters)
    refuse_sharded_elsewhere(parameter.tensor(), parameter.path, owner_, replicate_name);
  if (!covered.parameters.empty()) mesh_.prepare(covered.parameters[0].tensor().device());
}

std::map<std::string, Structure> ReplicateState::settings() const {
  std::map<std::string, Structure> all;
  all["device_ids"] =
      device::is_accelerator(device_) ? Structure::list({Structure(std::int64_t{device_.index})}) : Structure();
  all["bucket_cap_mb"] = options_.bucket_cap_mb.value_or(25.0);
  all["gradient_as_bucket_view"] = options_.gradient_as_bucket_view;
  all["find_unused_parameters"] = options_.find_unused_parameters;
  all["broadcast_buffers"] = options_.broadcast_buffers;
  all["ignored"] = paths_below(module_.lock(), options_.ignored);
  all["mesh"] = mesh_.shape().text();
  return all;
}

// ---- hooks ----
void ReplicateState::before_forward(nn::Inputs& inputs) {
  // A recomputation, or another forward in a hook of a backward, must not change buckets that this backward is filling.
  if (!recomputing() && !(reducer_ && reducer_->is_collecting())) {
    if (!reducer_) start();
    if (grad_enabled()) {
      // Only here: a graph may be open during an evaluation, and its backward needs the reducer of its forward.
      if (const auto trained = trained_parameters(); names_of(trained) != trained_names_) {
        reducer_->refuse_others(trained);
        make_reducer(trained);  // requires_grad of some parameters has changed
      }
      reducer_->prepare_forward(requires_gradient_sync);
    } else {
      reducer_->attach_if_free();
    }
    if (options_.broadcast_buffers) broadcast_buffers();
  }
  if (device::is_accelerator(device_)) move_to_device(inputs);
}

void ReplicateState::before_backward() {
  LOCKSTEP_CHECK(reducer_ != nullptr, "the gradients of a recomputed forward of ", owner_);
  reducer_->arm();
}

void ReplicateState::set_before_all_reduce(std::function<void()> hook) {
  before_all_reduce_ = std::move(hook);
  if (reducer_) reducer_->before_all_reduce = before_all_reduce_;
}

// ---- start-up and the reducer ----
void ReplicateState::start() {
  const ModulePtr module = module_.lock();
  const std::vector<NamedParameter> parameters = Collector(options_.ignored).collect(module).parameters;
  // Another API may have been applied to children since replicate() was called.
  module->applied.find(replicate_name)->second.parameter_names = names_of(parameters);
  for (const NamedParameter& parameter : parameters) {
    refuse_sharded_elsewhere(parameter.tensor(), parameter.path, owner_, replicate_name);
    refuse_different_shards(parameter);
  }
  if (!parameters.empty()) mesh_.prepare(parameters[0].tensor().device());  // the module may have moved
  start_up(mesh_.mesh_group(), parameters, owner_, replicate_name);
  make_reducer(trained_parameters());
}

std::vector<NamedParameter> ReplicateState::trained_parameters() const {
  std::vector<NamedParameter> parameters = Collector(options_.ignored).collect(module_.lock()).parameters;
  std::erase_if(parameters, [](const NamedParameter& parameter) { return !requires_grad(parameter.tensor()); });
  return parameters;
}

void ReplicateState::make_reducer(const std::vector<NamedParameter>& parameters) {
  trained_names_ = names_of(parameters);
  ReducerSettings settings;
  for (int axis = mesh_.num_axes() - 1; axis >= 0; --axis) settings.groups.push_back(&mesh_.group(axis));
  settings.all_ranks = &mesh_.mesh_group();
  if (options_.bucket_cap_mb)
    settings.limits.cap_bytes = static_cast<std::int64_t>(*options_.bucket_cap_mb * 1024 * 1024);
  settings.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  settings.find_unused_parameters = options_.find_unused_parameters;
  settings.owner = owner_;
  const auto before = std::exchange(reducer_, nullptr);
  reducer_ = std::make_shared<Reducer>(std::move(settings), parameters);
  if (before) before->detach_all();
  reducer_->before_all_reduce = before_all_reduce_;
}

// Ranks that hold different shards of a parameter cannot share one value of it.
void ReplicateState::refuse_different_shards(const NamedParameter& parameter) const {
  const auto& layout = parameter.tensor().layout();
  if (!layout) return;
  const std::vector<int> mine = layout->mesh.coordinates_of(RankContext::current().rank());
  for (const int rank : mesh_.shape().ranks()) {
    if (!layout->mesh.contains(rank)) continue;
    const std::vector<int> theirs = layout->mesh.coordinates_of(rank);
    for (std::size_t axis = 0; axis < mine.size(); ++axis)
      if (mine[axis] != theirs[axis] && !layout->placements[axis].is_replicate())
        throw Error(str("replicate: `", parameter.path, "` of ", owner_, " is ", layout->text(),
                        ": the ranks that would replicate it hold different shards"),
                    "replicate over an axis that does not shard it, or shard the module with fully_shard");
  }
}

// ---- buffers and inputs ----
// Buffers are read from their slots each time, as another tensor may have been assigned. Ranks other than 0 swap in new
// memory instead of writing to the old, which an earlier forward may have saved for its backward.
void ReplicateState::broadcast_buffers() {
  std::vector<Tensor> buffers;
  for (const nn::NamedBuffer& buffer : Collector(options_.ignored).collect(module_.lock()).buffers)
    buffers.push_back(buffer.tensor());
  if (buffers.empty()) return;
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.owner = owner_;
  const std::vector<Tensor> values = broadcast_together(mesh_.mesh_group(), buffers, call);
  if (mesh_.mesh_group().rank() == 0) return;
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::parameter);
  for (std::size_t i = 0; i < buffers.size(); ++i) nn::swap_data(buffers[i], raw::clone(values[i]));
}

void ReplicateState::move_to_device(nn::Inputs& inputs) const {
  const auto to_device = [this](const Tensor& tensor) {
    return tensor.device() == device_ ? tensor : ops::to_device(tensor, device_);
  };
  for (Structure& value : inputs.positional) value = nn::map_tensors(value, to_device);
  for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, to_device);
}

}  // namespace lockstep::parallel
