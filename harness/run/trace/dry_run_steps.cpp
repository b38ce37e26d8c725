// How a dry run performs the verbs that apply no parallel API (treatments of dry_run.cpp).
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/dry_run.hpp"
#include "harness/run/trace/plan_conditions.hpp"
#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

Value DryRun::run_as_is(StepCall& call) { return run_verb(call); }

namespace {

// The plan sees that the values have changed.
void note_written(const Value& written) {
  if (written.is_tensor()) written.as_tensor("it").bump_version();
  if (written.is(Value::Kind::list))
    for (const Value& item : written.as_list("it")) note_written(item);
}

}  // namespace

// A value that only a run knows changes the tensors, too.
Value DryRun::assign(StepCall& call) {
  try {
    return run_verb(call);
  } catch (const Error&) {
    note_written(call.value("to"));
    throw;
  }
}

// A file of the case holds what a run of this case wrote.
Value DryRun::read(StepCall& call) {
  values_read_.emplace(files_of_case);
  return run_verb(call);
}

// Moves the tensors that the scenario made on the meta device to a stand-in.
Value DryRun::to_empty(StepCall& call) {
  const nn::ModulePtr model = call.module("model").module;
  const device::Device to = device_named(call.in.session(), call.text("device"));
  nn::settle(model);
  const auto place = [to](const Tensor& tensor) {
    if (tensor.defined() && tensor.is_meta() && !is_stand_in(tensor.device()))
      nn::swap_data(tensor, empty(tensor.sizes(), tensor.dtype(), to));
  };
  for (const nn::NamedParameter& parameter : nn::named_parameters(model)) place(parameter.tensor());
  for (const nn::NamedBuffer& buffer : nn::named_buffers(model)) place(buffer.tensor());
  return Value();
}

namespace {

// Calls `visit` for each value of the state of a checkpoint.
template <class Visit>
void visit_state(const Value& value, const Visit& visit) {
  visit(value);
  if (value.is(Value::Kind::map))
    for (const auto& [key, item] : value.as_map("state")) visit_state(item, visit);
  if (value.is(Value::Kind::list))
    for (const Value& item : value.as_list("state")) visit_state(item, visit);
}

// A save or load reshards the groups of the modules in its state.
void settle_modules(const Value& state) {
  visit_state(state, [](const Value& value) {
    if (const nn::ModulePtr* module = value.get_if<nn::ModulePtr>()) nn::settle(*module);
  });
}

// Calls visit(name, optimizer) for each optimizer of the state. The names tell the parts of a state apart.
template <class Visit>
void visit_optimizers(const std::string& name, const Value& value, const Visit& visit) {
  if (const OptimizerPtr* optimizer = value.get_if<OptimizerPtr>()) visit(name, *optimizer);
  if (value.is(Value::Kind::map))
    for (const auto& [key, item] : value.as_map("state")) visit_optimizers(str(name, ".", key.text), item, visit);
  if (value.is(Value::Kind::list))
    for (std::size_t i = 0; i < value.as_list("state").size(); ++i)
      visit_optimizers(str(name, ".", i), value.as_list("state")[i], visit);
}

}  // namespace

Value DryRun::save_checkpoint(StepCall& call) {
  const Value state = call.value("state");
  settle_modules(state);
  std::map<std::string, optim::Optimizer::StateDict>& saved = saved_optimizers_[call.text("folder")];
  saved.clear();
  visit_optimizers("", state, [&](const std::string& name, const OptimizerPtr& optimizer) {
    saved[name] = without_tensors(flat_optimizers_.state_of_first_rank(optimizer));
  });
  return Value();
}

// A load or save that fails has resharded its modules before, unless it fails at its arguments. Units refuse it within
// a forward or backward.
void DryRun::settle_before_failure(StepCall& call) {
  if (nn::running_call() != 0 || in_backward()) return;
  try {
    if (call.step.verb == scenario::Verb::save_checkpoint) return settle_modules(call.value("state"));
    const Value into = call.value("into"), state = call.value("state");
    const nn::ModulePtr* module = into.get_if<nn::ModulePtr>();
    if (!module || call.text("keyed_by") == "position") return;
    if (call.boolean("broadcast_from_rank0") && !call.boolean("full")) return;
    if (call.boolean("assign") && !shards_.units_below(*module).empty()) return;
    for (const auto& [name, tensor] : state.as_map("state"))
      if (!tensor.is_tensor()) return;
    nn::settle(*module);
  } catch (const Error&) {  // it fails at an argument, or a run alone knows it
  }
}

// Optimizers get the state that the checkpoint has. What an earlier stage or another rank has saved is taken to be
// state of every parameter.
void DryRun::load_saved_optimizer(const std::string& folder, const std::string& name, const OptimizerPtr& optimizer,
                                  bool partial) {
  if (const auto saved = saved_optimizers_.find(folder); saved != saved_optimizers_.end()) {
    const auto at = saved->second.find(name);
    if (at != saved->second.end()) return flat_optimizers_.load_saved(optimizer, at->second, partial);
    if (partial) return;
  }
  optimizer->init_state();
  flat_optimizers_.note_init(optimizer);
}

// Shapes, types and devices stay. The plain values of the checkpoint are unknown.
Value DryRun::load_checkpoint(StepCall& call) {
  const Value state = call.value("state");
  settle_modules(state);
  visit_optimizers("", state, [&](const std::string& name, const OptimizerPtr& optimizer) {
    load_saved_optimizer(call.text("folder"), name, optimizer, call.boolean("partial"));
  });
  if (!call.step.as.empty()) throw Error("the values of a checkpoint are known in a run only");
  return Value();
}

Value DryRun::backward(StepCall& call) {
  const plan::Planner::BackwardScope scope(planner_);
  Value none = run_verb(call);
  tensor_parallel_.restore();
  watch_.report_position("backward");
  planner_.end_backward();
  shards_.end_backward();
  return none;
}

// ---- steps that read all gradients ----
namespace {

void add_gradient(std::vector<plan::Planner::Gradient>& gradients, const Tensor& parameter) {
  const Tensor gradient = grad(parameter);
  if (!gradient.defined() || !gradient.is_sharded()) return;
  const DType dtype = gradient.dtype();
  gradients.push_back({*gradient.layout(), size_of(dtype) == 2 ? DType::float32 : dtype});
}

}  // namespace

Value DryRun::clip_grad_norm(StepCall& call) {
  std::vector<plan::Planner::Gradient> gradients;
  for (const plan::ModuleId unit : shards_.units_below(call.module("model").module))
    for (plan::Planner::Gradient& norm : shards_.norms_of_unit(unit)) gradients.push_back(std::move(norm));
  for (const nn::NamedParameter& entry : nn::named_parameters(call.module("model").module))
    add_gradient(gradients, entry.trained());
  watch_.report_position();
  planner_.clip_gradients(gradients);
  return Value(empty({}, DType::float32, call.in.session().device));
}

// Whether the gradients are unscaled now. A disabled scaler has no state.
bool DryRun::plan_unscale(const ScalerPtr& scaler, const OptimizerPtr& optimizer) {
  if (!scaler->state_dict() || !unscaled_[scaler].insert(optimizer).second) return false;
  std::vector<plan::Planner::Gradient> gradients;
  for (const optim::Group& group : optimizer->groups())
    for (const optim::ParameterRef& parameter : group.parameters) add_gradient(gradients, parameter.get());
  for (const optim::Group& group : optimizer->groups())
    for (const optim::ParameterRef& parameter : group.parameters)
      for (const plan::Planner::Gradient& part : shards_.gradients_of_part(parameter.get())) gradients.push_back(part);
  watch_.report_position("optimizer");
  planner_.unscale_gradients(gradients);
  return true;
}

Value DryRun::unscale(StepCall& call) {
  plan_unscale(call.value("scaler").as_scaler("scaler"), call.value("optimizer").as_optimizer("optimizer"));
  return run_verb(call);
}

namespace {

std::vector<Tensor> tensors_of(optim::Optimizer& optimizer) {
  std::vector<Tensor> tensors;
  for (const optim::Group& group : optimizer.groups())
    for (const optim::ParameterRef& parameter : group.parameters) tensors.push_back(parameter.get());
  return tensors;
}

}  // namespace

// A step with a scaler that fails has unscaled the gradients, unless they cannot be. Repeated, it does so no more.
void DryRun::unscale_before_failure(StepCall& call) {
  planner_.begin_attempt();
  try {
    const ScalerPtr scaler = call.value("scaler").as_scaler("scaler");
    const OptimizerPtr optimizer = call.value("optimizer").as_optimizer("optimizer");
    if (plan_unscale(scaler, optimizer)) {
      unscaled_[scaler].erase(optimizer);
      scaler->unscale(*optimizer);
      unscaled_[scaler].insert(optimizer);
    }
  } catch (const Error&) {  // as in the run
  }
  planner_.end_attempt(true);
}

bool DryRun::skips_next_scaled_step() {
  const std::size_t next = num_scaled_steps_++;
  return next < scaled_steps_.size() && !scaled_steps_[next];
}

// A step that the run skipped unscales the gradients, and changes neither parameters nor the state of the optimizer.
Value DryRun::step(StepCall& call) {
  const OptimizerPtr optimizer = call.value("optimizer").as_optimizer("optimizer");
  if (call.has("scaler")) {
    const ScalerPtr scaler = call.value("scaler").as_scaler("scaler");
    const bool unscales = plan_unscale(scaler, optimizer);
    if (skips_next_scaled_step()) {
      if (unscales) scaler->unscale(*optimizer);
      skipped_.insert(scaler);
      return Value(false);
    }
  }
  // Before the hooks after the step: these may clear the gradients or run a forward.
  auto& stepped = RankContext::current().service<optim::StepObserver>().stepped;
  const auto outer = std::exchange(stepped, [this, optimizer](optim::Optimizer&, const optim::Group& group) {
    if (&group != &optimizer->groups().back()) return;
    flat_optimizers_.note_step(optimizer);
    shards_.note_step(tensors_of(*optimizer));
  });
  Value done;
  try {
    done = run_verb(call);
  } catch (...) {
    stepped = outer;
    throw;
  }
  stepped = outer;
  return done;
}

Value DryRun::init_optimizer_state(StepCall& call) {
  Value done = run_verb(call);
  flat_optimizers_.note_init(call.value("optimizer").as_optimizer("optimizer"));
  return done;
}

// After a skipped step, the scale falls. The scaler of the dry run has found no infinite gradient itself.
Value DryRun::update_scale(StepCall& call) {
  const ScalerPtr scaler = call.value("scaler").as_scaler("scaler");
  unscaled_.erase(scaler);
  const bool skipped = skipped_.erase(scaler) > 0;
  std::optional<optim::GradScaler::State> fallen = scaler->state_dict();
  Value none = run_verb(call);
  if (!skipped || !fallen || call.has("to")) return none;
  fallen->scale *= scaler->options().backoff_factor;
  fallen->growth_tracker = 0;
  if (static_cast<float>(fallen->scale) > 0) scaler->load_state_dict(*fallen);  // no scaler loads a scale of 0
  return none;
}

// The window holds the planned counts. Only a run knows the peak memory and the seconds.
Value DryRun::observe(StepCall& call) {
  const std::size_t first = planner_.collectives().size();
  const std::map<std::string, std::int64_t> user_before = user_collectives_;
  const int attempts_before = num_attempts_;
  call.in.run_steps(call.step.steps, call.scope);
  auto seen = std::make_shared<Observation>();
  PlannedWindow& window = seen->planned.emplace();
  const std::vector<plan::Collective>& all = planner_.collectives();
  for (std::size_t at = first; at < all.size(); ++at) window.counts[{all[at].family, all[at].operation}] += 1;
  for (const auto& [operation, count] : user_collectives_) {
    const auto before = user_before.find(operation);
    const std::int64_t more = count - (before == user_before.end() ? 0 : before->second);
    if (more > 0) window.counts[{"user", operation}] = more;
  }
  window.is_complete = attempts_before == num_attempts_;
  return Value(std::shared_ptr<const Observation>(std::move(seen)));
}

// Hooks around collectives never run: a dry run issues none.
Value DryRun::hook(StepCall& call) {
  const std::string at = call.text("at");
  if (at != "before_all_gather" && at != "before_reduce_scatter" && at != "before_all_reduce") return run_verb(call);
  note_unknown("hook", call.step.place, Error("its steps are performed only when the case runs"));
  return Value();
}

Value DryRun::wait(StepCall& call) {
  const Value target = call.value("for");
  if (const Handle* handle = target.get_if<Handle>(); handle && handle->finish) handle->finish();
  return Value();
}

}  // namespace lockstep::run
