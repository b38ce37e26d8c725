#include "harness/run/trace/plan_trace.hpp"

#include <algorithm>
#include <new>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/device/arena.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/verdict/compare.hpp"

namespace lockstep::run {

namespace {

bool among(std::string_view verb, std::initializer_list<std::string_view> verbs) {
  return std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
}

// They observe, wait, or break something: none of it is part of the plan.
bool is_left_out(const scenario::Step& step, std::string_view verb) {
  using scenario::Group;
  const Group group = scenario::spec_of(step.verb).group;
  if (group == Group::checks || group == Group::faults) return true;
  return among(verb, {"wait", "write", "record", "record_event", "set_post_optim_event", "barrier", "save_checkpoint",
                      "load_checkpoint"});
}

// Without them the rest can be foretold all the same.
bool is_optional(std::string_view verb) {
  return among(verb, {"let", "read", "drop", "assign", "set_gradient", "state_dict", "load_state_dict",
                      "init_optimizer_state", "clip_grad_norm", "reset_parameters"});
}

}  // namespace

// ---- the model as plain values ----
plan::ModuleId PlanTrace::id_of(const nn::ModulePtr& module) {
  const auto [at, added] = module_ids_.emplace(module.get(), static_cast<int>(modules_.size()));
  if (added) modules_.push_back(module);
  return at->second;
}

PlanTrace::PlanTrace()
    : shards_(planner_, {[this](const Tensor& tensor, plan::TensorId id) { stands_for(tensor, id); },
                         [this](plan::TensorId id) { gradient(id); }}) {}

void PlanTrace::gradient(plan::TensorId id) {
  here_in_backward();
  planner_.gradient(id);
}

plan::TensorId PlanTrace::id_of(const Tensor& tensor) {
  const auto [at, added] = tensor_ids_.emplace(&tensor.impl(), static_cast<int>(tensors_.size()));
  if (!added) return at->second;
  tensors_.push_back(tensor);
  // Sharding puts another tensor in its place: what then comes here is nobody's gradient.
  if (is_leaf(tensor) && is_floating(tensor.dtype()))
    add_post_accumulate_hook(tensor, [this, id = at->second](const Tensor& leaf) {
      if (tensor_ids_.contains(&leaf.impl())) gradient(id);
    });
  return at->second;
}

// It is kept, so that its address stays its own.
void PlanTrace::stands_for(const Tensor& tensor, plan::TensorId id) {
  const Tensor& first = tensors_[static_cast<std::size_t>(id)];
  if (const auto at = tensor_ids_.find(&first.impl()); at != tensor_ids_.end() && at->second == id)
    tensor_ids_.erase(at);
  tensor_ids_[&tensor.impl()] = id;
  replacements_.push_back(tensor);
}

void PlanTrace::refresh(const nn::ModulePtr& root) {
  shards_.adopt();
  plan::Facts facts;
  for (const nn::NamedModule& entry : nn::named_modules(root)) {
    plan::ModuleFacts& module = facts.modules[id_of(entry.module)];
    for (const nn::ChildSlot& child : entry.module->children) module.children.push_back(id_of(child.module));
    const auto add = [&](std::vector<plan::NamedTensor>& list, const std::string& name, const Tensor& tensor) {
      if (!tensor.defined()) return;
      const plan::TensorId id = id_of(tensor);
      list.push_back({name, id});
      facts.tensors[id] = {sizes_of_part(tensor), tensor.dtype(), requires_grad(tensor), tensor.storage()->version()};
    };
    for (const nn::ParameterSlot& slot : entry.module->parameters) add(module.parameters, slot.name, slot.trained());
    for (const nn::BufferSlot& slot : entry.module->buffers) add(module.buffers, slot.name, slot.tensor);
  }
  planner_.know(facts);
}

void PlanTrace::here(const char* phase) {
  planner_.at({phase ? std::string(phase) : std::string(comm::name_of(comm::current_phase())),
               RankContext::current().scenario_line, turn_});
}

// At the first event of a backward it tells what that one comes to.
void PlanTrace::here_in_backward() {
  here();
  if (std::exchange(backward_, backward_id()) == backward_id()) return;
  std::set<plan::TensorId> comes_to;
  for (const std::vector<Tensor>* all : {&tensors_, &replacements_})
    for (const Tensor& tensor : *all) {
      const auto id = tensor_ids_.find(&tensor.impl());
      if (id == tensor_ids_.end() || shards_.holds(tensor)) continue;
      if (is_leaf(tensor) && is_floating(tensor.dtype()) && backward_reaches(tensor)) comes_to.insert(id->second);
    }
  planner_.begin_backward(std::move(comes_to));
}

// ---- the trace ----
void PlanTrace::watch(const nn::ModulePtr& module) {
  refresh(module);
  if (!watched_.insert(module.get()).second) return;
  const plan::ModuleId id = id_of(module);
  module->add_pre_forward([this, id](nn::Module& of, nn::Inputs& inputs) {
    // What is below changes between forwards, not within one, nor in a backward that recomputes.
    if (depth_++ == 0 && !in_backward()) refresh(of.shared_from_this());
    here();
    const bool is_watched = planner_.enter(id, {grad_enabled(), in_backward()});
    shards_.follow();
    prepare(id, inputs);
    if (!is_watched) return;
    nn::Value all = nn::Value::list({nn::Value::list(inputs.positional), nn::Value::map(inputs.named)});
    all = nn::with_tensors(all, watch_passing(nn::tensors_of(all), [this, id] {
                             here_in_backward();
                             planner_.backward_leaves(id);
                             shards_.follow();
                           }));
    inputs.positional = all.items()[0].items();
    inputs.named = all.items()[1].entries();
  });
  module->add_post_forward([this, id](nn::Module&, const nn::Inputs&, nn::Value& outputs) {
    depth_ = std::max(0, depth_ - 1);
    here();
    const bool is_watched = planner_.leave(id, {grad_enabled(), in_backward()});
    shards_.follow();
    if (is_watched)
      outputs = nn::with_tensors(outputs, watch_first_gradient(nn::tensors_of(outputs), [this, id] {
                                   here_in_backward();
                                   planner_.backward_reaches(id);
                                   shards_.follow();
                                 }));
    shards_.finish(id, outputs);
  });
}

// Moves and casts of the APIs that are applied to a module.
void PlanTrace::prepare(plan::ModuleId module, nn::Inputs& inputs) const {
  if (const auto at = moves_inputs_to_.find(module); at != moves_inputs_to_.end()) {
    const auto moved = [device = at->second](const Tensor& tensor) {
      return tensor.device() == device ? tensor : ops::to_device(tensor, device);
    };
    for (nn::Value& value : inputs.positional) value = nn::map_tensors(value, moved);
    for (auto& [name, value] : inputs.named) value = nn::map_tensors(value, moved);
  }
  shards_.prepare(module, inputs);
}

// ---- steps ----
void PlanTrace::note(const std::string& name, const scenario::Place& place, const Error& error) {
  unknown_.push_back(str("`", name, "` of ", to_text(place), ": ", error.what()));
}

std::vector<std::string> PlanTrace::unknown_for(const std::string& message) const {
  std::vector<std::string> notes = unknown_;
  std::stable_partition(notes.begin(), notes.end(), [&](const std::string& note) {
    return message.find(note.substr(0, note.find('`', 1) + 1)) != std::string::npos;
  });
  return notes;
}

Value PlanTrace::perform(StepCall& call) {
  const std::string_view verb = scenario::name_of(call.step.verb);
  depth_ = 0;  // of a forward that failed before, or of one that this step is a hook of
  if (verb == "wait") {
    const Value target = call.value("for");
    if (const Handle* handle = target.get_if<Handle>(); handle && handle->finish) handle->finish();
    return Value();
  }
  if (is_left_out(call.step, verb)) {
    evaluate_calls(call);
    return Value();
  }
  if (verb != "let") return perform_known(call, verb);
  bind_each(call);
  return Value();
}

namespace {

// The blocks of a step, its routine's steps included.
std::vector<const scenario::Steps*> blocks_of(const scenario::Step& step) {
  std::vector<const scenario::Steps*> blocks = {&step.steps, &step.otherwise};
  for (const scenario::Branch& branch : step.among) blocks.push_back(&branch.steps);
  if (step.routine) blocks.push_back(&step.routine->steps);
  return blocks;
}

// Whether the plan is the same without it.
bool is_harmless(const scenario::Step& step) {
  const std::string_view verb = scenario::name_of(step.verb);
  const bool control = scenario::spec_of(step.verb).group == scenario::Group::control;
  if (!control && !is_left_out(step, verb) && !is_optional(verb)) return false;
  for (const scenario::Steps* block : blocks_of(step))
    if (!std::all_of(block->begin(), block->end(), is_harmless)) return false;
  return true;
}

void unbind(const scenario::Step& step, Names& names) {
  names.erase(step.as);
  for (const auto& [its, mine] : step.as_names) names.erase(mine);
  if (scenario::name_of(step.verb) == "let")
    for (const scenario::NamedExpr& entry : step.entries) names.erase(entry.name);
  if (step.routine) return;  // what it binds is its own
  for (const scenario::Steps* block : blocks_of(step))
    for (const scenario::Step& inner : *block) unbind(inner, names);
}

}  // namespace

bool PlanTrace::forgives(const scenario::Step& step, const Scope& scope, const Error& error) {
  if (dynamic_cast<const Unforeseeable*>(&error) != nullptr || !is_harmless(step)) return false;
  note(step.as.empty() ? std::string(scenario::name_of(step.verb)) : step.as, step.place, error);
  unbind(step, scope.frame->names);
  return true;
}

// Other steps than forwards fail before they issue anything, or in ways that are not seen here.
void PlanTrace::attempt(const scenario::Step& step, const Scope& scope, const std::function<void()>& perform) {
  if (!among(scenario::name_of(step.verb), {"forward", "let"})) return;
  const Names names = scope.frame->names;
  planner_.begin_attempt();
  attempts_ = true;
  num_attempts_ += 1;
  bool as_foreseen = false;
  try {
    perform();
  } catch (const std::exception& error) {
    as_foreseen = verdict::message_matches(error.what(), evaluate(*step.raises->message, scope).as_text("raises"));
  }
  attempts_ = false;
  planner_.end_attempt(as_foreseen);
  shards_.follow();
  scope.frame->names = names;
}

// A check may call a sharded module in its operands.
void PlanTrace::evaluate_calls(StepCall& call) {
  const auto calls_something_bound = [](const scenario::Expr& expr) {
    bool found = false;
    scenario::for_each_node(expr, [&found](const scenario::Expr& node) {
      found = found || (node.kind == scenario::ExprKind::call && node.function == scenario::Function::none);
    });
    return found;
  };
  for (const scenario::ExprPtr& argument : call.step.arguments)
    if (argument && calls_something_bound(*argument)) evaluate(*argument, call.scope);
  for (const scenario::NamedExpr& entry : call.step.entries)
    if (calls_something_bound(*entry.value)) evaluate(*entry.value, call.scope);
}

bool PlanTrace::knows(const scenario::Expr& expr, const Scope& scope) {
  try {
    evaluate(expr, scope);
    return true;
  } catch (const Error& error) {
    note(to_text(expr), {scope.frame->file, expr.line, expr.column}, error);
    return false;
  }
}

void PlanTrace::bind_each(StepCall& call) {
  const NoGrad no_grad;
  Names& names = call.scope.frame->names;
  for (const scenario::NamedExpr& entry : call.step.entries) {
    try {
      names[entry.name] = evaluate(*entry.value, call.scope);
    } catch (const Error& error) {
      if (attempts_) throw;
      note(entry.name, call.step.place, error);
      names.erase(entry.name);
    }
  }
}

Value PlanTrace::perform_known(StepCall& call, std::string_view verb) {
  const scenario::Group group = scenario::spec_of(call.step.verb).group;
  if (group == scenario::Group::parallel) return perform_applying(call, verb);
  if (group == scenario::Group::collectives) return shape_of_collective(call, verb);
  if (verb == "model") return build_model(call);
  if (verb == "observe") return observe(call);
  if (verb == "backward") {
    Value none = run_verb(call);
    here("backward");
    planner_.end_backward();
    shards_.follow();
    return none;
  }
  if (verb == "clip_grad_norm") return Value(empty({}, DType::float32, call.in.session().device));
  if (verb == "hook" && call.text("at").starts_with("before_") &&
      !among(call.text("at"), {"before_forward", "before_backward", "before_step"}))
    return Value();  // around collectives
  if (verb == "to_empty") {
    materialize(call);
    return Value();
  }
  // Rank 0 hands out values, which are no part of the plan, in the types and places that there are.
  if (verb == "load_state_dict" && call.boolean("broadcast_from_rank0")) {
    const Value into = call.value("into");
    if (const nn::ModulePtr* module = into.get_if<nn::ModulePtr>()) nn::settle(*module);
    return Value();
  }
  return run_verb(call);
}

// ---- a case ----
bool has_plan(const scenario::Steps& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const scenario::Step& step) {
    if (among(scenario::name_of(step.verb), {"replicate", "fully_shard"})) return true;
    const std::vector<const scenario::Steps*> blocks = blocks_of(step);
    return std::any_of(blocks.begin(), blocks.end(), [](const scenario::Steps* block) { return has_plan(*block); });
  });
}

PlanOutcome plan_case(const CaseSpec& spec, int rank, int world_size, std::size_t stage) {
  // A world of its own, of which hardly a page is touched: nothing has memory, nothing communicates.
  constexpr std::size_t arena_bytes = std::size_t{16} << 20;
  const auto world = device::HostWorld::create(world_size, device::Sharing::threads, arena_bytes,
                                               comm::control_bytes(world_size), rank);
  comm::prepare_world(*world);
  RankContext context(rank, world_size, world.get());
  const RankScope scope(context);
  comm::set_deadline(1.0);  // whoever asks for peers here learns soon that there are none
  PlanOutcome outcome;
  PlanTrace trace;
  {
    Interpreter interpreter(spec, rank, stage, &trace);
    try {
      interpreter.trace_steps();
    } catch (const scenario::OutOfTime&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      outcome.unforeseen = str(context.place, ": ", error.what());
      const std::vector<std::string> notes = trace.unknown_for(error.what());
      for (std::size_t i = 0; i < std::min<std::size_t>(notes.size(), 2); ++i)
        outcome.unforeseen += str(i == 0 ? " (unknown: " : "; ", notes[i], i + 1 == notes.size() || i == 1 ? ")" : "");
    }
  }
  outcome.planned = trace.planner().collectives();
  outcome.not_planned = trace.not_planned();
  return outcome;
}

}  // namespace lockstep::run
