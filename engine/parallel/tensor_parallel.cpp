#include "engine/parallel/tensor_parallel.hpp"

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/layers.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/start_up.hpp"
#include "engine/parallel/tensor_parallel_calls.hpp"

namespace lockstep::parallel {

using layout::Placement;
using nn::ModulePtr;

namespace {

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() || name.empty() ? path + name : path + "." + name;
}

// ---- checks ----
// Throws Error if an API that comes after tensor_parallel manages the module at `path`: it is applied to the module, to
// one above it or to one below it.
void require_unmanaged(const ModulePtr& model, const std::string& path, const std::string& name) {
  for (const nn::NamedModule& entry : nn::named_modules(model)) {
    const bool above = entry.path.empty() || path == entry.path || path.starts_with(entry.path + ".");
    const bool below = path.empty() || entry.path.starts_with(path + ".");
    if (!above && !below) continue;
    for (const std::string_view api : {fully_shard_name, flat_shard_name, replicate_name})
      if (is_applied(*entry.module, api))
        throw Error(str("Cannot apply `tensor_parallel()` to ", joined(name, path), ": `", api,
                        "` has been applied to ", joined(name, entry.path)),
                    "apply tensor_parallel first");
  }
}

// The same for a module that contains the whole model. It is named by its type if the name of the model does not tell.
void require_unmanaged_outside(const PlannedModule& one, const std::string& name) {
  const std::string own = joined(name, one.path);
  for (const std::string_view api : {fully_shard_name, flat_shard_name, replicate_name})
    for (const Managing& outer : managing_modules(one.module, api)) {
      const bool is_told = own.ends_with("." + outer.path);
      throw Error(str("Cannot apply `tensor_parallel()` to ", own, ": `", api, "` has been applied to ",
                      is_told ? own.substr(0, own.size() - outer.path.size() - 1) : str("the ", outer.module->type()),
                      is_told ? "" : str(" that contains it as `", outer.path, "`")),
                  "apply tensor_parallel first");
    }
}

// Throws Error for the shards of a Linear whose output features are attention heads, if the ranks would hold parts of
// heads.
void require_whole_heads(const PlannedModule& one, const DeviceMesh& mesh, const std::string& name) {
  const auto* colwise = std::get_if<Colwise>(&one.style);
  const auto* linear = dynamic_cast<const nn::Linear*>(one.module.get());
  if (!colwise || !colwise->output.is_shard() || !linear || linear->num_heads % mesh.shape().size(0) == 0) return;
  const std::int64_t features = global_sizes(one.module->parameter_slot("weight")->tensor)[0];
  throw Error(str("tensor_parallel: the ", features, " output features of ", joined(name, one.path), " are ",
                  linear->num_heads, " attention heads, which the ", mesh.shape().size(0), " ranks of ",
                  mesh.shape().text(), " cannot divide evenly"),
              str("distribute over a number of ranks that divides ", linear->num_heads,
                  ", or give the module the style colwise with output Replicate, which gathers the heads"));
}

// A parameter to distribute, with all its slots in the model.
struct Distributed {
  std::string path;  // of its first slot
  Tensor full;
  Placement placement;
  std::vector<nn::NamedParameter> slots;
};

class PlanReader {
 public:
  PlanReader(const ModulePtr& model, const DeviceMesh& mesh, const std::string& name)
      : model_(model), mesh_(mesh), name_(name) {}

  // The applications of the plan, in its order. Collects the parameters that it distributes.
  std::vector<Application> read(const std::vector<PlannedModule>& plan) {
    std::vector<Application> applications;
    std::map<const nn::Module*, std::string> planned;
    for (const PlannedModule& one : plan) {
      const auto [known, is_new] = planned.emplace(one.module.get(), one.path);
      if (!is_new)
        throw Error(str("tensor_parallel: ", joined(name_, one.path), " has two styles in the plan",
                        known->second == one.path ? "" : str(", also as ", joined(name_, known->second))),
                    "give a module one style");
      applications.emplace_back(one.module, tensor_parallel_name);
      require_unmanaged(model_, one.path, name_);
      require_unmanaged_outside(one, name_);
      require_whole_heads(one, mesh_, name_);
      collect(one);
    }
    require_tied();
    return applications;
  }
  std::vector<Distributed>& distributed() { return distributed_; }

 private:
  void collect(const PlannedModule& one) {
    const bool with_children = std::holds_alternative<SequenceParallel>(one.style);
    for (const nn::NamedParameter& parameter : nn::named_parameters(one.module, false)) {
      if (!with_children && parameter.owner != one.module) continue;
      const std::string path = joined(one.path, parameter.path);
      const std::optional<Placement> placement = placement_of(one.style, one.module->type(), parameter.path);
      if (placement) add({path, parameter.owner, parameter.slot}, *placement);
    }
    placement_of(one.style, one.module->type(), "");  // throws for a module that the style does not support
  }

  void add(nn::NamedParameter at, const Placement& placement) {
    check(at);
    layout::check({mesh_.shape(), {placement}, at.tensor().sizes()});
    const auto [known, is_new] = by_tensor_.emplace(&at.tensor().impl(), distributed_.size());
    if (is_new) {
      distributed_.push_back({at.path, at.tensor(), placement, {std::move(at)}});
      return;
    }
    Distributed& same = distributed_[known->second];
    if (!(same.placement == placement))
      throw Error(
          str("tensor_parallel: ", joined(name_, same.path), " and ", joined(name_, at.path),
              " are one parameter, but the plan asks for ", to_text(same.placement), " and ", to_text(placement)),
          "give both modules styles with the same placement, or untie the parameters first");
    same.slots.push_back(std::move(at));
  }

  void check(const nn::NamedParameter& at) const {
    const Tensor& tensor = at.tensor();
    if (tensor.is_sharded())
      throw Error(str("tensor_parallel: ", joined(name_, at.path), " is sharded already, as ", tensor.layout()->text()),
                  "distribute a parameter once, and apply tensor_parallel before fully_shard");
    if (grad(tensor).defined())
      throw Error(str("tensor_parallel: ", joined(name_, at.path), " has a gradient, which would be lost"),
                  "clear the gradients first");
    if (!is_leaf(tensor))
      throw Error(str("tensor_parallel: ", joined(name_, at.path), " is the result of ", grad_fn_name(tensor)),
                  "distribute parameters that are leaves");
  }

  // Every slot of the model that holds a distributed parameter is distributed.
  void require_tied() const {
    for (const nn::NamedParameter& at : nn::named_parameters(model_, false)) {
      const auto known = by_tensor_.find(&at.tensor().impl());
      if (known == by_tensor_.end()) continue;
      const Distributed& same = distributed_[known->second];
      bool is_planned = false;
      for (const nn::NamedParameter& slot : same.slots)
        is_planned = is_planned || (slot.owner == at.owner && slot.slot == at.slot);
      if (!is_planned)
        throw Error(str("tensor_parallel: ", joined(name_, same.path), " and ", joined(name_, at.path),
                        " are one parameter, and the plan has no style for the second"),
                    "give both modules styles with the same placement, or untie the parameters first");
    }
  }

  const ModulePtr& model_;
  const DeviceMesh& mesh_;
  const std::string& name_;
  std::vector<Distributed> distributed_;
  std::map<const TensorImpl*, std::size_t> by_tensor_;
};

// ---- application ----
// All ranks take the values of the first.
void agree_on_values(const DeviceMesh& mesh, const std::vector<Distributed>& parameters, const std::string& name) {
  std::vector<nn::NamedParameter> slots;
  for (const Distributed& one : parameters) {
    slots.push_back(one.slots[0]);
    slots.back().path = str(one.path, " as ", to_text(one.placement));
  }
  start_up(mesh.group(0), slots, name, tensor_parallel_name);
}

Tensor distributed(const DeviceMesh& mesh, const Distributed& parameter) {
  Tensor made;
  {
    const NoGrad no_grad;
    const device::PurposeScope purpose(device::Purpose::parameter);
    made = distribute(detach(parameter.full), mesh, {parameter.placement});
  }
  set_requires_grad(made, requires_grad(parameter.full));
  made.set_name(parameter.full.name());
  made.storage()->owner = parameter.full.storage()->owner;
  return made;
}

void distribute_in_slots(const DeviceMesh& mesh, Distributed& parameter) {
  Tensor made = distributed(mesh, parameter);
  for (const nn::NamedParameter& at : parameter.slots) {
    if (defect_armed(Defect::tensor_ties_broken)) [[unlikely]]
      made = distributed(mesh, parameter);
    at.owner->parameters[at.slot].tensor = made;
  }
  parameter.full = Tensor();
}

void complete(const Application& application, const PlannedModule& one, const DeviceMesh& mesh,
              const std::string& owner) {
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : nn::named_parameters(one.module, false))
    if (placement_of(one.style, one.module->type(), parameter.path) && parameter.tensor().is_sharded())
      names.push_back(parameter.path);
  std::map<std::string, nn::Structure> settings = settings_of(one.style);
  settings["mesh"] = mesh.shape().text();
  application.complete(std::move(settings), std::move(names), {});
  one.module->copy_refusal =
      str("tensor_parallel: ", owner, " cannot be copied. Copy the model before, or use its state dict.");
  one.module->set_wrapper(nn::Module::WrapperPosition::conversion,
                          [call = std::make_shared<StyledCall>(*one.module, mesh, one.style, owner)](
                              const nn::Inputs& inputs, const std::function<nn::Structure(const nn::Inputs&)>& inner) {
                            return (*call)(inputs, inner);
                          });
}

}  // namespace

void tensor_parallel(const ModulePtr& model, const DeviceMesh& mesh, const std::vector<PlannedModule>& plan,
                     const std::string& name) {
  const std::string owner = name.empty() ? model->type() : name;
  if (mesh.num_axes() != 1)
    throw Error(str("tensor_parallel of ", owner, " expects a mesh of one axis, but got ", mesh.shape().text()),
                "slice the axis to distribute over");
  PlanReader reader(model, mesh, owner);
  const std::vector<Application> applications = reader.read(plan);
  if (!reader.distributed().empty()) mesh.prepare(reader.distributed().front().full.device());
  agree_on_values(mesh, reader.distributed(), owner);
  for (Distributed& parameter : reader.distributed()) distribute_in_slots(mesh, parameter);
  for (std::size_t i = 0; i < plan.size(); ++i) complete(applications[i], plan[i], mesh, joined(owner, plan[i].path));
}

}  // namespace lockstep::parallel
