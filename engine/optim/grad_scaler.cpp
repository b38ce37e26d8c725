#include "engine/optim/grad_scaler.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/attribution.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

void require(bool holds, const char* option, double value, const char* range) {
  if (!holds) throw Error(str("GradScaler: ", option, " is ", value), str("it must be ", range));
}

void check(double scale, double growth_factor, double backoff_factor, std::int64_t growth_interval) {
  const auto rounded = static_cast<float>(scale);
  require(rounded > 0 && std::isfinite(rounded), "the scale", scale, "above 0 and finite in float32");
  require(growth_factor > 1 && std::isfinite(growth_factor), "growth_factor", growth_factor, "above 1 and finite");
  require(backoff_factor > 0 && backoff_factor < 1, "backoff_factor", backoff_factor, "above 0 and below 1");
  require(growth_interval >= 1, "growth_interval", static_cast<double>(growth_interval), "at least 1");
}

// A scalar that is 0 if all elements are finite and NaN otherwise. The host does not wait for the device.
Tensor zero_if_finite(const Tensor& gradient) { return raw::cast(raw::sum(raw::mul(gradient, 0.0)), DType::float32); }

// Whether this rank's gradients are finite. The host waits for their devices.
bool locally_finite(const std::vector<Tensor>& gradients) {
  std::vector<std::pair<device::Device, std::vector<Tensor>>> results;  // by device
  for (const Tensor& gradient : gradients) {
    const Tensor local = local_tensor(gradient);
    if (local.num_elements() == 0 || local.is_meta()) continue;
    auto at = std::find_if(results.begin(), results.end(),
                           [&local](const auto& entry) { return entry.first == local.device(); });
    if (at == results.end()) at = results.insert(at, {local.device(), {}});
    at->second.push_back(view(zero_if_finite(local), {1}));
  }
  bool finite = true;
  for (const auto& [device, of_device] : results) finite = finite && item(raw::sum(raw::cat(of_device, 0))) == 0.0;
  return finite;
}

// Whether `finite` holds on all ranks of the mesh.
bool finite_on_all_ranks(bool finite, const layout::MeshShape& mesh) {
  if (defect_armed(Defect::scaler_found_inf_of_parts)) return finite;
  const Tensor found_inf = full({1}, finite ? 0.0 : 1.0, DType::float32, device::Device{});
  const comm::AttributionScope scope({comm::Family::tensor_parallel, "grad_scaler"});
  const DeviceMesh ranks(mesh);
  comm::ProcessGroup& group = defect_armed(Defect::scaler_found_inf_of_one_axis) ? ranks.group(0) : ranks.mesh_group();
  comm::all_reduce(group, found_inf, comm::ReduceOp::max, comm::attributed_call());
  return item(found_inf) == 0.0;
}

std::vector<layout::MeshShape> meshes_of_parts(Optimizer& optimizer) {
  if (!RankContext::current().has_service<MeshesOfParts>()) return {};
  const auto& find = RankContext::current().service<MeshesOfParts>().find;
  return find ? find(optimizer) : std::vector<layout::MeshShape>{};
}

// Whether all gradients of all ranks are finite.
bool all_finite(const std::vector<Tensor>& gradients, const std::vector<layout::MeshShape>& of_parts) {
  bool finite = locally_finite(gradients);
  std::vector<layout::MeshShape> meshes;
  for (const Tensor& gradient : gradients) {
    if (!gradient.is_sharded()) continue;
    const layout::MeshShape& mesh = gradient.layout()->mesh;
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
  }
  for (const layout::MeshShape& mesh : of_parts)
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
  for (const layout::MeshShape& mesh : meshes) finite = finite_on_all_ranks(finite, mesh);
  return finite;
}

void multiply(const std::vector<Tensor>& gradients, double factor) {
  if (defect_armed(Defect::scaler_unscale_left_out)) return;
  for (const Tensor& gradient : gradients) raw::mul_(local_tensor(gradient), factor);
}

bool skips_step(bool found_inf) { return found_inf && !defect_armed(Defect::scaler_steps_anyway); }

// The growth tracker after the scale was reduced.
std::int64_t tracker_after_backoff(std::int64_t tracker) {
  return defect_armed(Defect::scaler_growth_not_reset) ? tracker : 0;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  check(options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval);
}

void GradScaler::unscale(Optimizer& optimizer) {
  if (!options_.enabled) return;
  OptimizerState& state = optimizers_[optimizer.number()];
  if (state.stage == Stage::unscaled)
    throw Error("GradScaler: unscale_() has already been called on this optimizer since the last update().",
                "unscale an optimizer once an iteration");
  if (state.stage == Stage::stepped)
    throw Error("GradScaler: unscale_() is being called after step().", "unscale before the step, or update first");

  const comm::PhaseScope phase(comm::Phase::optimizer);
  const NoGrad no_grad;
  std::vector<Tensor> gradients;
  std::set<const TensorImpl*> seen;  // parameters may have been tied since
  bool have_values = false;
  for (const Group& group : optimizer.groups())
    for (const ParameterRef& parameter : group.parameters) {
      have_values = have_values || !local_tensor(parameter.get()).is_meta();
      const Tensor gradient = grad(parameter.get());
      if (!gradient.defined() || !seen.insert(&gradient.impl()).second) continue;
      if (gradient.dtype() == DType::float16)
        throw Error(str("GradScaler: Attempting to unscale FP16 gradients. `", parameter.name, "` has one"),
                    "keep parameters in float32 and compute in float16, by mixed precision");
      gradients.push_back(gradient);
    }
  const std::vector<layout::MeshShape> of_parts = meshes_of_parts(optimizer);
  if (gradients.empty() && of_parts.empty())
    throw Error("GradScaler: No inf checks were recorded for this optimizer: none of its parameters has a gradient",
                "call backward before");
  state.found_inf = have_values && !all_finite(gradients, of_parts);
  state.stage = Stage::unscaled;
  multiply(gradients, static_cast<float>(1.0 / scale_));
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  const std::uint64_t number = optimizer.number();
  if (optimizers_[number].stage == Stage::stepped)
    throw Error("GradScaler: step() has already been called since the last update().", "update once an iteration");
  if (optimizers_[number].stage == Stage::ready) unscale(optimizer);
  const bool steps = !skips_step(optimizers_[number].found_inf);
  if (steps) optimizer.step();
  // Only here: a step that failed can be repeated. A hook of the step may have updated the scale, which ends the entry.
  if (const auto state = optimizers_.find(number); state != optimizers_.end()) state->second.stage = Stage::stepped;
  return steps;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  const auto checked = [](const auto& entry) { return entry.second.stage != Stage::ready; };
  if (std::none_of(optimizers_.begin(), optimizers_.end(), checked))
    throw Error("GradScaler: No inf checks were recorded prior to update.", "step or unscale an optimizer before");
  const bool found =
      std::any_of(optimizers_.begin(), optimizers_.end(), [](const auto& entry) { return entry.second.found_inf; });
  if (found) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    growth_tracker_ = tracker_after_backoff(growth_tracker_);
  } else if (++growth_tracker_ == options_.growth_interval) {
    growth_tracker_ = 0;
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
  }
  optimizers_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check(new_scale, options_.growth_factor, options_.backoff_factor, options_.growth_interval);
  scale_ = static_cast<float>(new_scale);
  optimizers_.clear();
}

std::optional<GradScaler::State> GradScaler::state_dict() const {
  if (!options_.enabled) return std::nullopt;
  return State{scale_, options_.growth_factor, options_.backoff_factor, options_.growth_interval, growth_tracker_};
}

void GradScaler::load_state_dict(const State& state) {
  if (!options_.enabled) return;
  check(state.scale, state.growth_factor, state.backoff_factor, state.growth_interval);
  require(state.growth_tracker >= 0, "growth_tracker", static_cast<double>(state.growth_tracker), "0 or more");
  scale_ = static_cast<float>(state.scale);
  options_.growth_factor = state.growth_factor;
  options_.backoff_factor = state.backoff_factor;
  options_.growth_interval = state.growth_interval;
  growth_tracker_ = state.growth_tracker;
}

}  // namespace lockstep::optim
