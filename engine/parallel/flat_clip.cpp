// clip_flat_grad_norm: the global norm of the gradients of flat-sharded units.
#include <set>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/optim/clip.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// A state has no context of several states before the first forward, when every unit may still become the root.
void check_is_root(const nn::ModulePtr& module) {
  const ShardStatePtr state = is_flat_sharded(module) ? shard_state_of(*module) : nullptr;
  if (state && (state->is_root() || state->context->states.empty())) return;
  throw Error(str("`clip_grad_norm` should only be called on the root FSDP instance, but ",
                  state ? state->owner() : module->type(), state ? " is below another one" : " is not sharded itself"),
              "call it with the outermost sharded module");
}

// The axis of the mesh whose ranks hold different gradients; -1: none.
int norm_axis_of(const ShardMesh& mesh) {
  const bool is_wrong =
      defect_armed(mesh.is_sharded() ? Defect::flat_clip_wrong_axis : Defect::flat_clip_counts_replicas);
  return is_wrong && mesh.replicate_axis >= 0 ? mesh.replicate_axis : mesh.shard_axis;
}

std::vector<optim::NormAxis> axes_of(const FlatParameterShards& unit, std::size_t index) {
  std::vector<optim::NormAxis> axes;
  const ShardMesh& mesh = unit.settings().mesh;
  if (const int axis = norm_axis_of(mesh); axis >= 0)
    axes.push_back({mesh.mesh.shape().names()[static_cast<std::size_t>(axis)],
                    mesh.mesh.shape().axis_members(axis, RankContext::current().rank())});
  for (optim::NormAxis& axis : optim::norm_axes_of(unit.parameter(index).inner_layout)) axes.push_back(std::move(axis));
  return axes;
}

// The gradient of the stretch of a parameter, undefined if there is none: never the padding around it.
Tensor gradient_of(const FlatParameterShards& unit, std::size_t index) {
  if (defect_armed(Defect::flat_clip_leaves_out_straddling) && unit.stretch(index).begin > 0) [[unlikely]]
    return Tensor();
  if (unit.has_original_parameters()) {
    const Tensor gradient = grad(unit.trained(index));
    return gradient.defined() && gradient.num_elements() > 0 ? local_tensor(gradient) : Tensor();
  }
  const Tensor gradient = grad(unit.shard());
  if (defect_armed(Defect::flat_clip_of_whole_chunk)) [[unlikely]]
    return gradient;
  const layout::Stretch at = unit.stretch(index);
  return gradient.defined() && at.length > 0 ? slice(gradient, 0, at.offset, at.offset + at.length) : Tensor();
}

}  // namespace

Tensor clip_flat_grad_norm(const nn::ModulePtr& root, double max_norm, double kind) {
  check_is_root(root);
  const NoGrad no_grad;
  std::vector<optim::GradientPart> parts;
  std::set<const TensorImpl*> managed;
  for (const FlatUnitShards& unit : flat_units_below(root)) {
    if (unit.shards->shows_full())
      throw Error(str("clip_grad_norm: the full parameters of ", unit.shards->settings().owner, " are summoned"),
                  "clip before or after summon_full_parameters");
    for (std::size_t i = 0; i < unit.shards->num_trained(); ++i) managed.insert(&unit.shards->trained(i).impl());
    for (std::size_t i = 0; i < unit.shards->num_parameters(); ++i)
      parts.push_back({gradient_of(*unit.shards, i), axes_of(*unit.shards, i), unit.shards->gradient_type()});
  }
  for (const nn::NamedParameter& entry : nn::named_parameters(root)) {
    if (managed.contains(&entry.trained().impl())) continue;
    if (const optim::GradientPart part = optim::gradient_part(entry.trained()); part.local.defined())
      parts.push_back(part);
  }
  std::optional<DType> widest;
  for (const optim::GradientPart& part : parts)
    if (part.local.defined()) widest = widest ? promote(*widest, part.local.dtype()) : part.local.dtype();
  const Tensor norm = optim::clip_parts(parts, max_norm, kind, shard_state_of(*root)->settings().device);
  return widest && norm.dtype() != *widest ? raw::cast(norm, *widest) : norm;
}

}  // namespace lockstep::parallel
