#include "harness/run/trace/module_watch.hpp"

#include <algorithm>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/checkpoint.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/core/rank_context.hpp"
#include "harness/run/trace/traced_layouts.hpp"

namespace lockstep::run {

void ModuleWatch::refresh(const nn::ModulePtr& root) {
  shards_.adopt_replaced();
  planner_.update_facts(model_.facts_of(root));
}

void ModuleWatch::report_position(const char* phase) {
  planner_.at({phase ? std::string(phase) : std::string(comm::name_of(comm::current_phase())),
               RankContext::current().scenario_line, iteration_});
}

void ModuleWatch::report_gradient(plan::TensorId id) {
  report_backward_position();
  planner_.gradient(id);
}

// The first event of a backward also reports the parameters that the backward reaches.
void ModuleWatch::report_backward_position() {
  report_position();
  if (std::exchange(backward_, backward_id()) == backward_id()) return;
  planner_.begin_backward(model_.reached_by_backward([this](const Tensor& tensor) { return shards_.holds(tensor); }));
}

void ModuleWatch::watch(const nn::ModulePtr& module) {
  refresh(module);
  if (!watched_.insert(module.get()).second) return;
  const plan::ModuleId id = model_.id_of(module);
  module->add_pre_forward([this, id](nn::Module& of, nn::Inputs& inputs) { before_forward(id, of, inputs); });
  module->add_post_forward(
      [this, id](nn::Module&, const nn::Inputs&, nn::Structure& outputs) { after_forward(id, outputs); });
}

void ModuleWatch::before_forward(plan::ModuleId id, nn::Module& module, nn::Inputs& inputs) {
  // The tree changes between forwards, but neither within a forward nor in a recomputation.
  if (depth_++ == 0 && !recomputing()) refresh(module.shared_from_this());
  report_position();
  const bool watches_backward = planner_.enter(id, {grad_enabled(), in_backward(), recomputing(), nn::running_call()});
  shards_.follow();
  prepare_inputs(id, inputs);
  if (!watches_backward) return;
  nn::Structure all = nn::Structure::list({nn::Structure::list(inputs.positional), nn::Structure::map(inputs.named)});
  if (TracedLayouts* layouts = TracedLayouts::active())
    for (const Tensor& tensor : nn::tensors_of(all)) layouts->collect_partial(tensor);
  all = nn::with_tensors(all, watch_passing(nn::tensors_of(all), [this, id] {
                           report_backward_position();
                           planner_.backward_leaves(id);
                           shards_.follow();
                         }));
  inputs.positional = all.items()[0].items();
  inputs.named = all.items()[1].entries();
}

void ModuleWatch::after_forward(plan::ModuleId id, nn::Structure& outputs) {
  depth_ = std::max(0, depth_ - 1);
  report_position();
  const std::vector<Tensor> tensors = nn::tensors_of(outputs);
  const bool recording = grad_enabled() && std::any_of(tensors.begin(), tensors.end(),
                                                       [](const Tensor& one) { return requires_grad(one); });
  const bool watches_backward = planner_.leave(id, {recording, in_backward(), recomputing()});
  shards_.follow();
  if (depth_ == 0 && !in_backward()) shards_.end_forward();
  if (watches_backward)
    outputs = nn::with_tensors(outputs, watch_first_gradient(nn::tensors_of(outputs), [this, id] {
                                 report_backward_position();
                                 planner_.backward_reaches(id);
                                 shards_.follow();
                               }));
  shards_.finish_outputs(id, outputs);
}

void ModuleWatch::prepare_inputs(plan::ModuleId module, nn::Inputs& inputs) const {
  if (const auto at = input_devices_.find(module); at != input_devices_.end()) {
    const auto moved = [device = at->second](const Tensor& tensor) {
      return tensor.device() == device ? tensor : ops::to_device(tensor, device);
    };
    for (nn::Structure& value : inputs.positional) value = nn::map_tensors(value, moved);
    for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, moved);
  }
  shards_.prepare_inputs(module, inputs);
}

}  // namespace lockstep::run
