#include "harness/run/trace/traced_tensor_parallel.hpp"

#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

plan::StyleKind kind_of(StyleKind kind) {
  switch (kind) {
    case StyleKind::colwise:
      return plan::StyleKind::colwise;
    case StyleKind::rowwise:
      return plan::StyleKind::rowwise;
    case StyleKind::sequence_parallel:
      return plan::StyleKind::sequence_parallel;
    case StyleKind::prepare_input:
      return plan::StyleKind::prepare_input;
    case StyleKind::prepare_output:
      return plan::StyleKind::prepare_output;
  }
  throw InternalError("an unknown style");
}

plan::ModuleKind kind_of(const nn::Module& module) {
  if (module.type() == "Linear") return plan::ModuleKind::linear;
  return module.type() == "Embedding" ? plan::ModuleKind::embedding : plan::ModuleKind::other;
}

plan::StyleChoice choice_of(const StyleArgument& style) {
  return {kind_of(style.kind), style.input, style.output, style.dim, style.keep_sharded};
}

// Whether the tensor is the shard of a parameter over this mesh.
bool is_shard_over(const Tensor& tensor, const layout::MeshShape& mesh) {
  return tensor.defined() && tensor.is_sharded() && tensor.layout()->mesh == mesh;
}

}  // namespace

// ---- application ----
void TracedTensorParallel::apply(const TensorParallelArguments& arguments) {
  const layout::MeshShape& mesh = arguments.mesh->shape();
  watch_.refresh(arguments.model.module);
  std::vector<Tensor> full;  // the distributed parameters, each once
  std::vector<StyledPtr> added;
  for (const StyledModule& one : arguments.modules) {
    added.push_back(add_module(arguments, one));
    for (const Slot& slot : added.back()->slots) {
      const Tensor& tensor = slot.get().tensor;
      if (std::none_of(full.begin(), full.end(), [&](const Tensor& known) { return known.same_as(tensor); }))
        full.push_back(tensor);
    }
  }
  std::vector<std::pair<device::Device, std::int64_t>> bytes;  // of the values, per device
  bool one_type = true;
  for (const Tensor& tensor : full) {
    one_type = one_type && tensor.dtype() == full[0].dtype();
    if (!is_stand_in(tensor.device())) continue;  // made on meta: there are no values
    auto at =
        std::find_if(bytes.begin(), bytes.end(), [&](const auto& entry) { return entry.first == tensor.device(); });
    if (at == bytes.end()) at = bytes.insert(at, {tensor.device(), 0});
    at->second += plan::bytes_of(tensor.sizes(), tensor.dtype());
  }
  std::vector<std::int64_t> bytes_per_device;
  bytes_per_device.reserve(bytes.size());
  for (const auto& [device, num_bytes] : bytes) bytes_per_device.push_back(num_bytes);
  planner_.tensor_parallel().start(arguments.model.path, mesh, bytes_per_device, !full.empty(), one_type);
  for (std::size_t i = 0; i < added.size(); ++i) {
    const nn::ModulePtr& module = arguments.modules[i].module;
    for (Slot& slot : added[i]->slots) {
      const auto reading = plan::parameter_reading(choice_of(added[i]->style), kind_of(*module), slot.get().name);
      distribute(arguments.model.module, slot, *reading, *added[i]);
    }
    install(module, added[i]);
    styled_.push_back(added[i]);
  }
}

TracedTensorParallel::StyledPtr TracedTensorParallel::add_module(const TensorParallelArguments& arguments,
                                                                 const StyledModule& one) {
  const plan::ModuleKind kind = kind_of(*one.module);
  const std::string owner = one.path.empty() ? arguments.model.path : str(arguments.model.path, ".", one.path);
  auto styled =
      std::make_shared<Styled>(Styled{model_.id_of(one.module), one.style, arguments.mesh->shape(), owner, {}});
  plan::TensorParallelPlan::StyledModule planned{owner, choice_of(one.style), kind, styled->mesh};
  // A Linear that a scenario defines may have another weight, or none.
  const nn::ParameterSlot* weight = kind == plan::ModuleKind::linear ? one.module->parameter_slot("weight") : nullptr;
  const bool converts_inputs = one.style.kind != StyleKind::prepare_output;
  if (converts_inputs && weight && weight->tensor.defined() && global_sizes(weight->tensor).size() == 2)
    planned.input_features = global_sizes(weight->tensor)[1];
  planner_.tensor_parallel().add(styled->id, std::move(planned));
  const bool with_children = one.style.kind == StyleKind::sequence_parallel;
  for (const nn::NamedParameter& parameter : nn::named_parameters(one.module, false)) {
    if (!with_children && parameter.owner != one.module) continue;
    const auto reading = plan::parameter_reading(choice_of(one.style), kind, parameter.path);
    if (reading) styled->slots.push_back({parameter.owner, parameter.slot, reading->gradient_is_partial, {}});
  }
  return styled;
}

void TracedTensorParallel::distribute(const nn::ModulePtr& model, const Slot& slot,
                                      const plan::ParameterReading& reading, const Styled& styled) {
  const Tensor full = slot.get().tensor;
  if (full.is_sharded()) return;  // distributed through another slot
  const plan::TensorId id = model_.id_of(full);
  const layout::ShardedLayout layout{styled.mesh, {reading.placement}, full.sizes()};
  const int rank = planner_.tensor_parallel().rank();
  Tensor shard;
  {
    const NoGrad no_grad;
    shard = make_sharded(empty(layout::local_sizes(layout, rank), full.dtype(), full.device()), layout);
  }
  shard.set_name(full.name());
  if (requires_grad(full)) set_requires_grad(shard, true);
  if (is_floating(shard.dtype()))
    add_post_accumulate_hook(shard, [this, id](const Tensor&) { watch_.report_gradient(id); });
  model_.replace(id, shard);
  parameters_.insert_or_assign(id, Parameter{layout, reading.gradient_is_partial});
  for (const nn::NamedParameter& at : nn::named_parameters(model, false))
    if (at.tensor().same_as(full)) at.owner->parameters[at.slot].tensor = shard;
}

const layout::ShardedLayout* TracedTensorParallel::layout_of(plan::TensorId id) const {
  const auto at = parameters_.find(id);
  return at == parameters_.end() ? nullptr : &at->second.layout;
}

void TracedTensorParallel::install(const nn::ModulePtr& module, const StyledPtr& styled) {
  // Inside an activation checkpoint of the module, which recomputes with the same slots.
  module->add_pre_forward([this, styled](nn::Module&, nn::Inputs&) { show(*styled); }, nn::Module::Place::user, true);
  module->add_post_forward([styled](nn::Module&, const nn::Inputs&, nn::Structure&) { hide(*styled); },
                           nn::Module::Place::user);
  module->set_wrapper(
      nn::Module::WrapperPosition::conversion,
      [this, styled](const nn::Inputs& inputs, const std::function<nn::Structure(const nn::Inputs&)>& compute) {
        return call(*styled, inputs, compute);
      });
}

// ---- parameters ----
// The slots of a group of fully_shard show its own tensors.
void TracedTensorParallel::show(Styled& styled) {
  hide(styled);
  for (Slot& slot : styled.slots) {
    nn::ParameterSlot& at = slot.get();
    if (!is_shard_over(at.tensor, styled.mesh)) continue;
    slot.shown = full_of(at.tensor, slot, styled);
    at.sharded = at.tensor;
    at.tensor = slot.shown;
  }
}

void TracedTensorParallel::hide(Styled& styled) {
  for (Slot& slot : styled.slots) {
    if (!slot.shown.defined()) continue;
    nn::ParameterSlot& at = slot.get();
    if (at.tensor.same_as(slot.shown)) at.tensor = at.sharded;
    at.sharded = Tensor();
    slot.shown = Tensor();
  }
}

void TracedTensorParallel::restore() {
  if (nn::running_call() != 0) return;
  for (const StyledPtr& styled : styled_) hide(*styled);
}

// A partial gradient is reduced when it is complete.
Tensor TracedTensorParallel::full_of(const Tensor& shard, const Slot& slot, const Styled& styled) {
  if (!slot.gradient_is_partial || !requires_grad(shard)) return layouts_.as_noted(shard);
  std::shared_ptr<std::string>& owner = unreduced_[&shard.impl()];
  if (!owner) {
    owner = std::make_shared<std::string>();
    hooked_.push_back(shard);
    add_hook(shard, [this, owner, layout = *shard.layout(), dtype = shard.dtype()](const Tensor&) {
      watch_.report_backward_position();
      if (!owner->empty())
        planner_.tensor_parallel().reduce_gradient(std::exchange(*owner, {}), layout.mesh, layout.sizes, dtype);
      return Tensor();
    });
  }
  return layouts_.as_noted(shard, [owner, module = styled.owner] { *owner = module; });
}

void TracedTensorParallel::note_full(plan::TensorId id, const Tensor& full) {
  if (const layout::ShardedLayout* layout = layout_of(id)) layouts_.note(full, {*layout, {}});
}

std::optional<plan::Axis> TracedTensorParallel::partial_axis_of(plan::TensorId id) const {
  const auto at = parameters_.find(id);
  if (at == parameters_.end() || !at->second.gradient_is_partial) return {};
  return plan::Axis{at->second.layout.mesh.names()[0], at->second.layout.mesh.size(0)};
}

// ---- calls ----
nn::Structure TracedTensorParallel::call(const Styled& styled, nn::Inputs inputs,
                                         const std::function<nn::Structure(const nn::Inputs&)>& compute) {
  struct OwnerScope {
    TracedLayouts& layouts;
    std::string previous;
    ~OwnerScope() { layouts.set_owner(std::move(previous)); }
  };
  const OwnerScope scope{layouts_, layouts_.owner()};
  layouts_.set_owner(styled.owner);
  convert_inputs(styled, inputs);
  return convert_outputs(styled, compute(inputs));
}

void TracedTensorParallel::convert_inputs(const Styled& styled, nn::Inputs& inputs) {
  if (styled.style.kind == StyleKind::prepare_output) return;
  if (styled.style.kind == StyleKind::prepare_input) {
    for (std::size_t i = 0; i < std::min(inputs.positional.size(), styled.style.conversions.size()); ++i)
      inputs.positional[i] = prepared(styled, inputs.positional[i], styled.style.conversions[i]);
    for (auto& [name, value] : inputs.named)
      for (const auto& [wanted, conversion] : styled.style.named)
        if (wanted == name) value = prepared(styled, value, conversion);
    return;
  }
  if (inputs.positional.empty() || !inputs.positional[0].is_tensor())
    throw Error(str("the first input of ", styled.owner, " is no tensor"));
  const Tensor x = layouts_.input_as_noted(inputs.positional[0].tensor());
  inputs.positional[0] =
      layouts_.changed(x, planner_.tensor_parallel().input(styled.id, layouts_.input_value(x)), true);
}

nn::Structure TracedTensorParallel::convert_outputs(const Styled& styled, const nn::Structure& outputs) {
  if (styled.style.kind == StyleKind::prepare_input) return outputs;
  if (styled.style.kind == StyleKind::prepare_output) {
    if (!outputs.is_list()) return prepared(styled, outputs, styled.style.conversions.at(0));
    nn::Structure::List items = outputs.items();
    for (std::size_t i = 0; i < std::min(items.size(), styled.style.conversions.size()); ++i)
      items[i] = prepared(styled, items[i], styled.style.conversions[i]);
    return nn::Structure::list(std::move(items));
  }
  const Tensor& y = outputs.tensor();
  const plan::Change change = planner_.tensor_parallel().output(styled.id, y.sizes(), y.dtype());
  layouts_.note(y, {change.from, {}});
  return layouts_.changed(y, change, plan::keeps_sharded(choice_of(styled.style)));
}

nn::Structure TracedTensorParallel::prepared(const Styled& styled, const nn::Structure& item,
                                             const std::optional<ConversionArgument>& conversion) {
  if (!conversion || !item.is_tensor()) return item;
  const Tensor x = layouts_.input_as_noted(item.tensor());
  const plan::Change change =
      planner_.tensor_parallel().prepared(styled.id, layouts_.input_value(x), conversion->given, conversion->wanted);
  return layouts_.changed(x, change, plan::keeps_sharded(choice_of(styled.style)));
}

}  // namespace lockstep::run
