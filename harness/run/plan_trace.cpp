#include "harness/run/plan_trace.hpp"

#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/device/arena.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/interpreter.hpp"
#include "harness/verdict/compare.hpp"

namespace lockstep::run {

namespace {

constexpr device::Device meta{device::Kind::meta, 0};

bool among(std::string_view verb, std::initializer_list<std::string_view> verbs) {
  return std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
}

// They observe, wait, or break something: none of it is part of the plan.
bool is_left_out(const scenario::Step& step, std::string_view verb) {
  using scenario::Group;
  const Group group = scenario::spec_of(step.verb).group;
  if (group == Group::checks || group == Group::faults) return true;
  return among(verb, {"wait", "write", "record", "record_event", "set_post_optim_event", "barrier", "to_empty",
                      "reset_parameters", "save_checkpoint", "load_checkpoint"});
}

// Without them the rest can be foretold all the same.
bool is_optional(std::string_view verb) {
  return among(verb, {"let", "read", "drop", "assign", "set_gradient", "state_dict", "load_state_dict",
                      "init_optimizer_state", "clip_grad_norm"});
}

}  // namespace

// ---- the model as plain values ----
plan::ModuleId PlanTrace::id_of(const nn::ModulePtr& module) {
  const auto [at, added] = module_ids_.emplace(module.get(), static_cast<int>(modules_.size()));
  if (added) modules_.push_back(module);
  return at->second;
}

plan::TensorId PlanTrace::id_of(const Tensor& tensor, std::optional<plan::TensorId> stands_for) {
  const auto [at, added] =
      tensor_ids_.emplace(&tensor.impl(), stands_for ? *stands_for : static_cast<int>(tensors_.size()));
  if (added) {
    (stands_for ? replacements_ : tensors_).push_back(tensor);
    if (is_leaf(tensor) && is_floating(tensor.dtype())) {
      add_post_accumulate_hook(tensor, [this, id = at->second](const Tensor&) {
        here_in_backward();
        planner_.gradient(id);
      });
    }
  }
  return at->second;
}

void PlanTrace::refresh(const nn::ModulePtr& root) {
  plan::Facts facts;
  for (const nn::NamedModule& entry : nn::named_modules(root)) {
    plan::ModuleFacts& module = facts.modules[id_of(entry.module)];
    for (const nn::ChildSlot& child : entry.module->children) module.children.push_back(id_of(child.module));
    const auto add = [&](std::vector<plan::NamedTensor>& list, const std::string& name, const Tensor& tensor) {
      if (!tensor.defined()) return;
      // What a load puts in the slot of a sharded parameter is that parameter from then on.
      auto& in_slot = in_slots_[{entry.module.get(), name}];
      if (in_slot && !planner_.shards().owns(*in_slot)) in_slot.reset();
      const plan::TensorId id = id_of(tensor, in_slot);
      in_slot = id;
      list.push_back({name, id});
      facts.tensors[id] = {sizes_of_part(tensor), tensor.dtype(), requires_grad(tensor), tensor.storage()->version()};
    };
    for (const nn::ParameterSlot& slot : entry.module->parameters) add(module.parameters, slot.name, slot.tensor);
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
    for (const Tensor& tensor : *all)
      if (is_leaf(tensor) && is_floating(tensor.dtype()) && backward_reaches(tensor))
        comes_to.insert(tensor_ids_.at(&tensor.impl()));
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
    if (!planner_.enter(id, {grad_enabled(), in_backward()})) return;
    nn::Value all = nn::Value::list({nn::Value::list(inputs.positional), nn::Value::map(inputs.named)});
    all = nn::with_tensors(all, watch_passing(nn::tensors_of(all), [this, id] {
                             here_in_backward();
                             planner_.backward_leaves(id);
                           }));
    inputs.positional = all.items()[0].items();
    inputs.named = all.items()[1].entries();
  });
  module->add_post_forward([this, id](nn::Module&, const nn::Inputs&, nn::Value& outputs) {
    depth_ = std::max(0, depth_ - 1);
    here();
    if (!planner_.leave(id, {grad_enabled(), in_backward()})) return;
    outputs = nn::with_tensors(outputs, watch_first_gradient(nn::tensors_of(outputs), [this, id] {
                                 here_in_backward();
                                 planner_.backward_reaches(id);
                               }));
  });
}

// ---- steps ----
void PlanTrace::note(const std::string& what, const Error& error) { unknown_.push_back(str(what, ": ", error.what())); }

Value PlanTrace::perform(StepCall& call) {
  const std::string_view verb = scenario::name_of(call.step.verb);
  depth_ = 0;  // of a forward that failed before, or of one that this step is a hook of
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
  note(str(scenario::name_of(step.verb), " of ", to_text(step.place)), error);
  unbind(step, scope.frame->names);
  return true;
}

// Other steps than forwards fail before they issue anything, or in ways that are not seen here.
void PlanTrace::attempt(const scenario::Step& step, const Scope& scope, const std::function<void()>& perform) {
  if (!among(scenario::name_of(step.verb), {"forward", "let"})) return;
  const Names names = scope.frame->names;
  planner_.begin_attempt();
  attempts_ = true;
  bool as_foreseen = false;
  try {
    perform();
  } catch (const std::exception& error) {
    as_foreseen = verdict::message_matches(error.what(), evaluate(*step.raises->message, scope).as_text("raises"));
  }
  attempts_ = false;
  planner_.end_attempt(as_foreseen);
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
    note(str("`", to_text(expr), "`"), error);
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
      note(str("`", entry.name, "`"), error);
      names.erase(entry.name);
    }
  }
}

Value PlanTrace::perform_known(StepCall& call, std::string_view verb) {
  const scenario::Group group = scenario::spec_of(call.step.verb).group;
  if (group == scenario::Group::parallel) return perform_applying(call, verb);
  if (group == scenario::Group::collectives) return shape_of_collective(call, verb);
  if (verb == "model") return build_model(call);
  if (verb == "backward") {
    Value none = run_verb(call);
    here("backward");
    planner_.end_backward();
    return none;
  }
  if (verb == "clip_grad_norm") return Value(empty({}, DType::float32, meta));
  if (verb == "hook" && call.text("at").starts_with("before_") &&
      !among(call.text("at"), {"before_forward", "before_backward", "before_step"}))
    return Value();  // around collectives
  if (verb == "to") {
    const ModuleAt target = call.module("model");
    const NoGrad no_grad;
    if (call.has("dtype")) nn::cast_module(target.module, call.value("dtype").as_dtype("dtype"));
    refresh(target.module);
    planner_.shards().settle(id_of(target.module));
    return Value();
  }
  if (among(verb, {"state_dict", "load_state_dict"})) {
    const Value of = call.value(verb == "state_dict" ? "of" : "into");
    if (const nn::ModulePtr* module = of.get_if<nn::ModulePtr>()) {
      refresh(*module);
      planner_.shards().settle(id_of(*module));
    }
    // Whole tensors are cut among ranks that are not there; values are no part of the plan.
    if (verb == "load_state_dict" && call.boolean("full")) return Value();
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
    } catch (const std::exception& error) {
      outcome.unforeseen = error.what();
      for (std::size_t i = 0; i < std::min<std::size_t>(trace.unknown().size(), 2); ++i)
        outcome.unforeseen +=
            str(i == 0 ? " (without " : "; ", trace.unknown()[i], i + 1 == trace.unknown().size() || i == 1 ? ")" : "");
    }
  }
  outcome.planned = trace.planner().collectives();
  outcome.not_planned = trace.not_planned();
  return outcome;
}

}  // namespace lockstep::run
