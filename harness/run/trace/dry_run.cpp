#include "harness/run/trace/dry_run.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/rank_context.hpp"
#include "engine/optim/grad_scaler.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/run/step_blocks.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/verdict/compare.hpp"

namespace lockstep::run {

using scenario::Step;
using scenario::Verb;

DryRun::DryRun(std::vector<bool> scaled_steps)
    : planner_(RankContext::current().rank()),
      model_(planner_, [this](plan::TensorId id) { watch_.report_gradient(id); }),
      shards_(planner_, {[this](plan::TensorId id, const Tensor& tensor) { model_.replace(id, tensor); },
                         [this](plan::TensorId id) { watch_.report_gradient(id); },
                         [this](plan::TensorId id) { return tensor_parallel_.layout_of(id) != nullptr; },
                         [this](plan::TensorId id, const Tensor& full) { tensor_parallel_.note_full(id, full); }}),
      flat_optimizers_(planner_, shards_),
      watch_(planner_, model_, shards_),
      layouts_(planner_, {[this] { watch_.report_position(); }, [this] { watch_.report_backward_position(); },
                          [this](const Tensor& leaf, const std::optional<plan::Axis>& axis) -> std::function<void()> {
                            const plan::TensorId id = model_.id_of(leaf);
                            if (!planner_.shards().owns(id)) return {};
                            return [this, id, axis] { planner_.shards().add_to_gradient(id, axis); };
                          }}),
      tensor_parallel_(planner_, model_, layouts_, watch_),
      scaled_steps_(std::move(scaled_steps)) {
  // A rank that holds no element of a unit unscales beside those that do.
  RankContext::current().service<optim::MeshesOfParts>().find = [this](optim::Optimizer& optimizer) {
    std::vector<layout::MeshShape> meshes;
    for (const optim::Group& group : optimizer.groups())
      for (const optim::ParameterRef& parameter : group.parameters)
        for (const plan::Planner::Gradient& part : shards_.gradients_of_part(parameter.get()))
          meshes.push_back(part.layout.mesh);
    return meshes;
  };
}

// There is no `default`: a new verb does not compile until its treatment is stated here.
DryRun::Treatment DryRun::treatment_of(Verb verb) {
  switch (verb) {
    // Performed by the verb's own function. Later steps depend on it.
    case Verb::exact_products:
    case Verb::model:
    case Verb::copy:
    case Verb::to:
    case Verb::set_training:
    case Verb::set_parameter:
    case Verb::activation_checkpoint:  // it communicates nothing, and the hooks see its recomputations
    case Verb::optimizer:
    case Verb::forward:
    case Verb::grad_scaler:
    case Verb::set_lr:
    case Verb::zero_grad:
      return {&DryRun::run_as_is, OnError::ends_plan};

    // Performed by the verb's own function. It may need a value that only a run knows: then it is left out.
    case Verb::drop:
    case Verb::reset_parameters:
    case Verb::set_gradient:
      return {&DryRun::run_as_is, OnError::is_left_out};

    // Control steps: the interpreter walks their steps.
    case Verb::repeat:
    case Verb::for_each:
    case Verb::if_:
    case Verb::choose:
    case Verb::use:
      return {&DryRun::run_as_is, OnError::by_steps};

    // Left out: they check, record, synchronize or inject faults. No tensor of a dry run has values to draw.
    case Verb::seed:
    case Verb::write:
    case Verb::verify_checkpoint:
    case Verb::diff_checkpoints:
    case Verb::export_checkpoint:
    case Verb::set_post_optim_event:
    case Verb::barrier:
    case Verb::record_event:
    case Verb::record:
    case Verb::delay:
    case Verb::exit:
    case Verb::touch:
    case Verb::expect:
    case Verb::expect_equal:
    case Verb::expect_different:
    case Verb::expect_across:
    case Verb::expect_collectives:
    case Verb::expect_events:
    case Verb::expect_launches:
      return {&DryRun::leave_out, OnError::is_left_out};

    // Performed by a function of the dry run.
    case Verb::let:
      return {&DryRun::let, OnError::is_left_out};
    case Verb::assign:
      return {&DryRun::assign, OnError::is_left_out};
    case Verb::read:
      return {&DryRun::read, OnError::is_left_out};
    case Verb::to_empty:
      return {&DryRun::to_empty, OnError::ends_plan};
    case Verb::set_requires_grad:
      return {&DryRun::set_requires_grad, OnError::ends_plan};
    case Verb::state_dict:
      return {&DryRun::state_dict, OnError::is_left_out};
    case Verb::set_state_dict_type:
      return {&DryRun::set_state_dict_type, OnError::ends_plan};
    case Verb::load_state_dict:
      return {&DryRun::load_state_dict, OnError::is_left_out};
    case Verb::save_checkpoint:
      return {&DryRun::save_checkpoint, OnError::is_left_out};
    case Verb::load_checkpoint:
      return {&DryRun::load_checkpoint, OnError::is_left_out};
    case Verb::backward:
      return {&DryRun::backward, OnError::ends_plan};
    case Verb::clip_grad_norm:
      return {&DryRun::clip_grad_norm, OnError::is_left_out};
    case Verb::step:
      return {&DryRun::step, OnError::ends_plan};
    case Verb::init_optimizer_state:
      return {&DryRun::init_optimizer_state, OnError::is_left_out};
    case Verb::unscale:
      return {&DryRun::unscale, OnError::ends_plan};
    case Verb::update_scale:
      return {&DryRun::update_scale, OnError::ends_plan};
    case Verb::observe:
      return {&DryRun::observe, OnError::ends_plan};
    case Verb::hook:
      return {&DryRun::hook, OnError::ends_plan};
    case Verb::wait:
      return {&DryRun::wait, OnError::is_left_out};

    // Parallel APIs: the planner instead of the engine.
    case Verb::mesh:
      return {&DryRun::mesh, OnError::ends_plan};
    case Verb::replicate:
      return {&DryRun::replicate, OnError::ends_plan};
    case Verb::fully_shard:
      return {&DryRun::fully_shard, OnError::ends_plan};
    case Verb::flat_shard:
      return {&DryRun::flat_shard, OnError::ends_plan};
    case Verb::summon_full_parameters:
      return {&DryRun::summon_full_parameters, OnError::ends_plan};
    case Verb::tensor_parallel:
      return {&DryRun::tensor_parallel, OnError::ends_plan};
    case Verb::unshard:
      return {&DryRun::unshard, OnError::ends_plan};
    case Verb::reshard:
      return {&DryRun::reshard, OnError::ends_plan};
    case Verb::set_flags:
      return {&DryRun::set_flags, OnError::ends_plan};
    case Verb::prefetch:
      return {&DryRun::prefetch, OnError::ends_plan};
    case Verb::register_forward_method:
      return {&DryRun::register_forward_method, OnError::ends_plan};
    case Verb::extend_gather:
      return {&DryRun::extend_gather, OnError::ends_plan};

    // Collectives of the scenario: their results have shapes and no values.
    case Verb::all_reduce:
    case Verb::broadcast:
    case Verb::receive:
    case Verb::send:
      return {&DryRun::collective_in_place, OnError::ends_plan};
    case Verb::all_gather:
      return {&DryRun::all_gather, OnError::ends_plan};
    case Verb::reduce_scatter:
      return {&DryRun::reduce_scatter, OnError::ends_plan};
    case Verb::all_to_all:
      return {&DryRun::all_to_all, OnError::ends_plan};
    case Verb::gather:
      return {&DryRun::gather, OnError::ends_plan};
    case Verb::scatter:
      return {&DryRun::scatter, OnError::ends_plan};
  }
  throw InternalError("a verb that is not in the vocabulary");
}

bool DryRun::affects_plan(Verb verb) { return treatment_of(verb).perform != &DryRun::leave_out; }

// StepCall::value() holds the dry run to this.
bool DryRun::reads(Verb verb, std::string_view argument) {
  switch (verb) {
    case Verb::clip_grad_norm:
      return argument == "model";
    case Verb::all_reduce:
    case Verb::receive:
      return argument == "tensor";
    case Verb::broadcast:
      return argument == "tensor" || argument == "from" || argument == "mesh";
    case Verb::send:
      return false;
    default:
      return true;
  }
}

void DryRun::prepare(Session& session) {
  session.is_dry_run = true;
  session.names_read = &values_read_;
  meshes_.push_back(DeviceMesh::world().shape());
}

void DryRun::enter(const Step&, const Site& site) {
  scenario::Budget::ask_time();
  scenario::note_line(site.scenario_line, site.line == site.scenario_line ? site.column : 1);
}

Value DryRun::perform(StepCall& call) {
  watch_.forget_open_calls();
  return (this->*treatment_of(call.step.verb).perform)(call);
}

void DryRun::perform_expecting_error(StepCall& call) {
  const Verb verb = call.step.verb;
  if (verb == Verb::load_state_dict || verb == Verb::save_checkpoint) return settle_before_failure(call);
  if (verb == Verb::step && call.has("scaler")) return unscale_before_failure(call);
  if (verb != Verb::forward && verb != Verb::let) return;
  const Names names = call.scope.frame->names;
  const std::size_t num_scaled_steps = num_scaled_steps_;
  planner_.begin_attempt();
  const bool is_within_another = std::exchange(is_attempt_, true);
  num_attempts_ += 1;
  bool failed_as_expected = false;
  try {
    call.in.perform(call);
  } catch (const std::exception& error) {
    failed_as_expected =
        verdict::message_matches(error.what(), evaluate(*call.step.raises->message, call.scope).as_text("raises"));
  }
  is_attempt_ = is_within_another;
  num_scaled_steps_ = num_scaled_steps;
  planner_.end_attempt(failed_as_expected);
  tensor_parallel_.restore();
  shards_.follow();
  if (failed_as_expected) return;  // the names that it bound before it failed stay
  call.scope.frame->names = names;
  note_unknown(std::string(scenario::name_of(verb)), call.step.place,
               Error("a dry run does not meet the error that the step must raise"));
}

// ---- failures ----
bool DryRun::is_dispensable(const Step& step) {
  if (treatment_of(step.verb).on_error == OnError::ends_plan) return false;
  for (const scenario::Steps* block : blocks_and_routine_of(step))
    if (!std::all_of(block->begin(), block->end(), is_dispensable)) return false;
  return true;
}

namespace {

void unbind_results(const Step& step, Names& names) {
  names.erase(step.as);
  for (const auto& [inner, outer] : step.as_names) names.erase(outer);
  if (step.verb == Verb::let)
    for (const scenario::NamedExpr& entry : step.entries) names.erase(entry.name);
  if (step.routine) return;  // its steps bind names of its own scope
  for (const scenario::Steps* block : blocks_of(step))
    for (const Step& inner : *block) unbind_results(inner, names);
}

}  // namespace

bool DryRun::tolerates(const Step& step, const Scope& scope, const Error& error) {
  if (dynamic_cast<const Unforeseeable*>(&error) != nullptr || !is_dispensable(step)) return false;
  note_unknown(step.as.empty() ? std::string(scenario::name_of(step.verb)) : step.as, step.place, error);
  unbind_results(step, scope.frame->names);
  return true;
}

std::optional<Value> DryRun::routine_argument(const scenario::Expr& expr, const Scope& scope) {
  try {
    return evaluate(expr, scope);
  } catch (const Error& error) {
    note_unknown(to_text(expr), {scope.frame->file, expr.line, expr.column}, error);
    return std::nullopt;
  }
}

void DryRun::note_unknown(const std::string& name, const scenario::Place& place, const Error& error) {
  unknown_values_.push_back(str("`", name, "` of ", to_text(place), ": ", error.what()));
}

std::vector<std::string> DryRun::unknown_values(const std::string& message) const {
  std::vector<std::string> notes = unknown_values_;
  std::stable_partition(notes.begin(), notes.end(), [&](const std::string& note) {
    return message.find(note.substr(0, note.find('`', 1) + 1)) != std::string::npos;
  });
  return notes;
}

}  // namespace lockstep::run
