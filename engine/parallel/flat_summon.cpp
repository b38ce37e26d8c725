#include "engine/parallel/flat_summon.hpp"

#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/parallel/host_tensors.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// Per parameter, whether any rank has a gradient of it. No rank of the shard axis has one if tensor parallelism gives
// all elements to other ranks. Then a note says so.
std::vector<bool> agreed_gradients(const FlatParameterShards& unit) {
  std::vector<std::int64_t> mine;
  for (std::size_t i = 0; i < unit.num_trained(); ++i)
    mine.push_back(grad(unit.trained(i)).defined() || has_grad_of_peers(unit.trained(i)) ? 1 : 0);
  if (unit.settings().mesh.is_sharded()) {
    comm::Call call;
    call.family = comm::Family::data_parallel;
    call.owner = unit.settings().owner;
    mine = sum_numbers(unit.settings().mesh.shard_group(), mine, call);
  }
  std::vector<bool> found;
  for (std::size_t i = 0; i < unit.num_parameters(); ++i)
    found.push_back(mine[unit.has_original_parameters() ? i : 0] != 0);
  return found;
}

bool is_filled(const FlatParameterShards& unit, const SummonOptions& options) {
  return !options.rank0_only || defect_armed(Defect::flat_summon_on_every_rank) ||
         unit.settings().mesh.shard_rank() == 0;
}

bool recurses(const SummonOptions& options) { return options.recurse || defect_armed(Defect::flat_summon_recurses); }

Tensor placed(const Tensor& tensor, bool offload) {
  return offload && !defect_armed(Defect::flat_summon_not_offloaded)
             ? sharded_like(raw::to_device(local_tensor(tensor), device::Device{}), tensor)
             : tensor;
}

void show(FlatParameterShards& unit, const SummonOptions& options) {
  const NoGrad no_grad;
  const Tensor values = unit.gather_flat(unit.shard());
  Tensor gradients;
  std::vector<bool> has_gradient(unit.num_parameters());
  if (options.gradients) {
    has_gradient = agreed_gradients(unit);
    gradients = unit.gather_flat(unit.gradient_chunk());
  }
  std::vector<Tensor> full(unit.num_parameters());
  for (std::size_t i = 0; i < full.size() && is_filled(unit, options); ++i) {
    full[i] = placed(unit.part_of(values, i), options.offload);
    const UnshardedParameter& parameter = unit.parameter(i);
    full[i].set_name(parameter.slots.front().get().tensor.name());
    if (parameter.requires_grad()) set_requires_grad(full[i], true);
    if (has_gradient[i])
      set_grad(full[i], placed(unit.part_of(gradients, i), options.offload), GradientType::any_floating);
  }
  unit.show_full(full);
}

void check_shown(const FlatParameterShards& unit) {
  for (std::size_t i = 0; i < unit.num_parameters(); ++i) {
    const UnshardedParameter& parameter = unit.parameter(i);
    const Tensor& now = parameter.slots.front().get().tensor;
    if (!now.defined() || local_tensor(now).sizes() != unit.flat().entries[i].sizes)
      throw Error(str("Cannot writeback when the parameter shape changes: `", parameter.name, "` of ",
                      unit.settings().owner, " is expected to have sizes ", to_text(unit.flat().entries[i].sizes),
                      " but got ", now.defined() ? describe_sharded(now) : "nothing"),
                  "assign a tensor of the same sizes");
    for (const ParameterSlotRef& slot : parameter.slots)
      if (!slot.get().tensor.same_as(now))
        throw Error(str("Changing shared parameters is not supported: `", parameter.name, "` of ",
                        unit.settings().owner, " has several places with different tensors"),
                    "assign the tensor to all places of the parameter");
  }
}

// A tensor that had none keeps what waits for synchronization: it was not shown, so nobody dropped it.
void end_gradient(const Tensor& trained) {
  if (grad(trained).defined() || has_grad_of_peers(trained)) set_grad(trained, Tensor());
}

void write_back(FlatParameterShards& unit, bool with_gradients) {
  const NoGrad no_grad;
  Tensor gradients = with_gradients ? unit.gradient_chunk() : Tensor();
  bool has_gradient = false;
  for (std::size_t i = 0; i < unit.num_parameters(); ++i) {
    const Tensor now = unit.parameter(i).slots.front().get().tensor;
    const layout::Stretch at = unit.stretch(i);
    const auto copy = [&unit, &at, i](const Tensor& chunk, const Tensor& full) {
      raw::copy_(slice(detach(chunk), 0, at.offset, at.offset + at.length), unit.stretch_of_full(full, i));
    };
    if (!defect_armed(Defect::flat_summon_not_written_back)) copy(unit.shard(), now);
    if (!with_gradients || defect_armed(Defect::flat_summoned_gradients_lost)) continue;
    const Tensor gradient = grad(now);
    has_gradient = has_gradient || gradient.defined();
    if (gradient.defined()) copy(gradients, gradient);
    if (!unit.has_original_parameters()) {
      // The chunk holds zeros for a parameter without a gradient.
      if (!gradient.defined()) raw::zero_(slice(gradients, 0, at.offset, at.offset + at.length));
      continue;
    }
    const Tensor& trained = unit.trained(i);
    if (!gradient.defined())
      end_gradient(trained);
    else if (at.length == 0)
      note_grad_of_peers(trained);
    else
      set_grad(trained,
               sharded_like(view(slice(gradients, 0, at.offset, at.offset + at.length), local_tensor(trained).sizes()),
                            trained),
               GradientType::any_floating);
  }
  if (!with_gradients || unit.has_original_parameters()) return;
  if (has_gradient)
    set_grad(unit.trained(0), gradients, GradientType::any_floating);
  else
    end_gradient(unit.trained(0));
}

}  // namespace

SummonedParameters::SummonedParameters(const nn::ModulePtr& module, const SummonOptions& options) : options_(options) {
  if (options.rank0_only && options.writeback)
    throw Error("writeback=True and rank0_only=True is not supported: only one rank could write",
                "give `writeback: false`");
  const std::vector<FlatUnitShards> units = settled_flat_units_below(module, recurses(options));
  try {
    for (const FlatUnitShards& unit : units) {
      show(*unit.shards, options_);
      units_.push_back(unit.shards);
    }
  } catch (...) {
    restore();  // no destructor runs
    throw;
  }
}

SummonedParameters::~SummonedParameters() { restore(); }

void SummonedParameters::finish() {
  if (options_.writeback) {
    for (const auto& unit : units_) check_shown(*unit);
    for (const auto& unit : units_) write_back(*unit, options_.gradients);
  }
  restore();
}

void SummonedParameters::restore() {
  for (const auto& unit : std::exchange(units_, {})) unit->hide_full();
}

}  // namespace lockstep::parallel
