#include "engine/parallel/replicate.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/placement.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/host_tensors.hpp"
#include "engine/parallel/reducer.hpp"
#include "engine/parallel/start_up.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

constexpr double most_bucket_mb = 1 << 20;  // a larger bucket is a mistake, and one of 2^43 MB has no number of bytes

using nn::ModulePtr;
using nn::NamedParameter;
using nn::Value;

// ---- what is replicated ----
struct Covered {
  std::vector<NamedParameter> parameters;
  std::vector<nn::NamedBuffer> buffers;
};

// The parameters and buffers below `module`, but for subtrees that another API manages or that are ignored.
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
    if (is_applied(*module, fully_shard_name)) return;
    if (!is_root && is_applied(*module, replicate_name)) return;
    for (std::size_t slot = 0; slot < module->parameters.size(); ++slot) {
      const auto& [name, tensor, sharded, num_draws] = module->parameters[slot];
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

// ---- device ids ----
std::optional<device::Device> device_of(const Value& device_id, const std::vector<NamedParameter>& parameters) {
  if (device_id.is_none()) return std::nullopt;
  device::Device device;
  if (const auto* text = device_id.get_if<std::string>()) {
    device = device::device_from_name(*text);
  } else if (const auto* index = device_id.get_if<std::int64_t>()) {
    if (!parameters.empty()) device.kind = parameters[0].tensor().device().kind;
    device.index = static_cast<int>(*index);
  } else {
    throw Error(str("Expected device_id to be int or torch.device, but got ", device_id.kind()),
                "give the index of a device, or its name");
  }
  for (const NamedParameter& parameter : parameters)
    if (!(parameter.tensor().device() == device))
      throw Error(str("replicate: device_id is ", device::to_text(device), ", but `", parameter.path, "` is on ",
                      device::to_text(parameter.tensor().device())),
                  "move the module to the device first");
  return device;
}

bool is_accelerator(const std::optional<device::Device>& device) {
  return device && (device->kind == device::Kind::sim || device->kind == device::Kind::cuda);
}

// ---- the state behind a replicated module ----
class Replicated {
 public:
  Replicated(const ModulePtr& module, const ReplicateOptions& options)
      : module_(module), options_(options), mesh_(options.mesh ? *options.mesh : DeviceMesh::world()) {
    Covered covered = Collector(options.ignored).collect(module);
    for (const NamedParameter& parameter : covered.parameters) names_.push_back(parameter.path);
    device_ = device_of(options.device_id, covered.parameters);
    if (options.bucket_cap_mb && (!(*options.bucket_cap_mb > 0) || *options.bucket_cap_mb > most_bucket_mb))
      throw Error(str("replicate: bucket_cap_mb is ", *options.bucket_cap_mb),
                  str("it must be above 0, and at most ", most_bucket_mb));
    owner_ = options.name.empty() ? module->type() : options.name;
  }

  const std::vector<std::string>& names() const { return names_; }

  std::map<std::string, Value> settings() const {
    std::map<std::string, Value> all;
    all["device_ids"] = is_accelerator(device_) ? Value::list({Value(std::int64_t{device_->index})}) : Value();
    all["bucket_cap_mb"] = options_.bucket_cap_mb.value_or(25.0);
    all["gradient_as_bucket_view"] = options_.gradient_as_bucket_view;
    all["find_unused_parameters"] = options_.find_unused_parameters;
    all["broadcast_buffers"] = options_.broadcast_buffers;
    all["mesh"] = mesh_.shape().text();
    return all;
  }

  void before_forward(nn::Inputs& inputs) {
    // A forward within a backward recomputes: nothing may change under the gradients that are on their way.
    if (!in_backward()) {
      if (!reducer_)
        start();
      else if (const auto trained = trained_parameters(); names_of(trained) != trained_names_)
        make_reducer(trained);  // some were frozen or thawed
      if (grad_enabled()) reducer_->prepare_forward(requires_gradient_sync);
      if (options_.broadcast_buffers) broadcast_buffers();
    }
    if (is_accelerator(device_)) move(inputs);
  }
  void before_backward() {
    if (reducer_) reducer_->arm();
  }
  void set_before_all_reduce(std::function<void()> hook) {
    before_all_reduce_ = std::move(hook);
    if (reducer_) reducer_->before_all_reduce = before_all_reduce_;
  }

  bool requires_gradient_sync = true;

 private:
  void start() {
    const ModulePtr module = module_.lock();
    std::vector<NamedParameter> parameters = Collector(options_.ignored).collect(module).parameters;
    // Children may have been given to another API since: what holds is what is found now.
    std::vector<std::string>& names = module->applied.find(replicate_name)->second.parameter_names;
    names.clear();
    names.reserve(parameters.size());
    for (const NamedParameter& parameter : parameters) names.push_back(parameter.path);
    for (const NamedParameter& parameter : parameters) refuse_other_parts(parameter);
    start_up(mesh_.whole_group(), parameters, owner_);
    make_reducer(trained_parameters());
  }

  std::vector<NamedParameter> trained_parameters() const {
    std::vector<NamedParameter> parameters = Collector(options_.ignored).collect(module_.lock()).parameters;
    std::erase_if(parameters, [](const NamedParameter& parameter) { return !requires_grad(parameter.tensor()); });
    return parameters;
  }
  static std::vector<std::string> names_of(const std::vector<NamedParameter>& parameters) {
    std::vector<std::string> names;
    names.reserve(parameters.size());
    for (const NamedParameter& parameter : parameters) names.push_back(parameter.path);
    return names;
  }

  void make_reducer(const std::vector<NamedParameter>& parameters) {
    trained_names_ = names_of(parameters);
    ReducerSettings settings;
    for (int axis = mesh_.num_axes() - 1; axis >= 0; --axis) settings.groups.push_back(&mesh_.group(axis));
    settings.whole = &mesh_.whole_group();
    if (options_.bucket_cap_mb)
      settings.limits.cap_bytes = static_cast<std::int64_t>(*options_.bucket_cap_mb * 1024 * 1024);
    settings.gradient_as_bucket_view = options_.gradient_as_bucket_view;
    settings.find_unused_parameters = options_.find_unused_parameters;
    settings.owner = owner_;
    const auto before = std::exchange(reducer_, nullptr);
    reducer_ = std::make_shared<Reducer>(std::move(settings), parameters);
    if (before) reducer_->take_over(*before);
    reducer_->before_all_reduce = before_all_reduce_;
  }

  // Ranks that hold different parts of a parameter cannot take one value for it.
  void refuse_other_parts(const NamedParameter& parameter) const {
    const auto& layout = parameter.tensor().impl().layout;
    if (!layout) return;
    const std::vector<int> mine = layout->mesh.coordinates_of(RankContext::current().rank());
    for (const int rank : mesh_.shape().ranks()) {
      if (!layout->mesh.contains(rank)) continue;
      const std::vector<int> theirs = layout->mesh.coordinates_of(rank);
      for (std::size_t axis = 0; axis < mine.size(); ++axis)
        if (mine[axis] != theirs[axis] && !layout->placements[axis].is_replicate())
          throw Error(str("replicate: `", parameter.path, "` of ", owner_, " is ", layout->text(),
                          ": its parts differ between the ranks that would replicate it"),
                      "replicate over an axis that does not cut it, or shard the module with fully_shard");
    }
  }

  // Buffers are looked up in their slots each time, as they may have been put in anew. What arrives takes the place of
  // the old memory instead of changing it: an earlier forward may have saved that for its backward.
  void broadcast_buffers() {
    std::vector<Tensor> buffers;
    for (const nn::NamedBuffer& buffer : Collector(options_.ignored).collect(module_.lock()).buffers)
      buffers.push_back(buffer.tensor());
    if (buffers.empty()) return;
    comm::Call call;
    call.family = comm::Family::data_parallel;
    call.owner = owner_;
    const std::vector<Tensor> values = broadcast_together(mesh_.whole_group(), buffers, call);
    if (mesh_.whole_group().rank() == 0) return;
    const NoGrad no_grad;
    const device::PurposeScope purpose(device::Purpose::other);
    for (std::size_t i = 0; i < buffers.size(); ++i) nn::swap_data(buffers[i], raw::clone(values[i]));
  }

  void move(nn::Inputs& inputs) const {
    const auto to_device = [this](const Tensor& tensor) {
      return tensor.device() == *device_ ? tensor : ops::to_device(tensor, *device_);
    };
    for (Value& value : inputs.positional) value = nn::map_tensors(value, to_device);
    for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, to_device);
  }

  std::weak_ptr<nn::Module> module_;
  ReplicateOptions options_;
  DeviceMesh mesh_;
  std::vector<std::string> names_;
  std::optional<device::Device> device_;
  std::string owner_;
  std::function<void()> before_all_reduce_;
  std::shared_ptr<Reducer> reducer_;  // from the first forward on
  std::vector<std::string> trained_names_;
};

using ReplicatedPtr = std::shared_ptr<Replicated>;

ReplicatedPtr replicated(const nn::Module& module) {
  const auto found = module.applied.find(replicate_name);
  return found == module.applied.end() ? nullptr : std::any_cast<ReplicatedPtr>(found->second.state);
}

}  // namespace

void replicate(const ModulePtr& module, const ReplicateOptions& options) {
  const Application application(module, replicate_name);
  if (is_applied(*module, fully_shard_name))
    throw Error("Cannot apply `replicate()` on a Module already managed by `fully_shard`",
                "shard it over a mesh with a replicate axis instead");
  const auto state = std::make_shared<Replicated>(module, options);
  application.complete(state->settings(), state->names(), state);
  module->add_pre_forward([weak = std::weak_ptr(state)](nn::Module&, nn::Inputs& inputs) {
    if (const auto alive = weak.lock()) alive->before_forward(inputs);
  });
  module->add_pre_backward(
      [weak = std::weak_ptr(state)](nn::Module&) {
        if (const auto alive = weak.lock()) alive->before_backward();
      },
      nn::Module::Place::api);
}

int set_requires_gradient_sync(const ModulePtr& module, bool value, bool recurse) {
  int num_changed = 0;
  const auto modules = recurse ? nn::named_modules(module) : std::vector<nn::NamedModule>{{"", module}};
  for (const nn::NamedModule& entry : modules)
    if (const auto state = replicated(*entry.module)) {
      state->requires_gradient_sync = value;
      ++num_changed;
    }
  return num_changed;
}

void set_before_all_reduce(const ModulePtr& module, std::function<void()> hook) {
  const auto state = replicated(*module);
  if (!state)
    throw Error(str("set_before_all_reduce: ", module->type(), " is not replicated"), "call replicate() first");
  state->set_before_all_reduce(std::move(hook));
}

}  // namespace lockstep::parallel
