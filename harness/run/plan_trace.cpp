#include "harness/run/plan_trace.hpp"

#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/device/arena.hpp"
#include "engine/layout/placement.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/interpreter.hpp"

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

plan::Reshard reshard_of(const Value& value) {
  using Kind = plan::Reshard::Kind;
  if (const bool* flag = value.get_if<bool>()) return {*flag ? Kind::yes : Kind::no, 0};
  return {Kind::among, static_cast<int>(value.as_int("reshard_after_forward"))};
}

std::vector<plan::Axis> axes_of(const DeviceMesh& mesh) {
  std::vector<plan::Axis> axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    axes.push_back({mesh.shape().names()[static_cast<std::size_t>(axis)], mesh.shape().size(axis)});
  return axes;
}

}  // namespace

// ---- the model as plain values ----
plan::ModuleId PlanTrace::id_of(const nn::ModulePtr& module) {
  const auto [at, added] = module_ids_.emplace(module.get(), static_cast<int>(modules_.size()));
  if (added) modules_.push_back(module);
  return at->second;
}

plan::TensorId PlanTrace::id_of(const Tensor& tensor) {
  const auto [at, added] = tensor_ids_.emplace(&tensor.impl(), static_cast<int>(tensors_.size()));
  if (added) {
    tensors_.push_back(tensor);
    if (is_leaf(tensor) && is_floating(tensor.dtype())) {
      add_post_accumulate_hook(tensor, [this, id = at->second](const Tensor&) {
        here();
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
      const plan::TensorId id = id_of(tensor);
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

// ---- the trace ----
void PlanTrace::watch(const nn::ModulePtr& module) {
  refresh(module);
  if (!watched_.insert(module.get()).second) return;
  const plan::ModuleId id = id_of(module);
  module->add_pre_forward([this, id](nn::Module& of, nn::Inputs& inputs) {
    refresh(of.shared_from_this());
    here();
    if (!planner_.enter(id, {grad_enabled(), in_backward()})) return;
    nn::Value all = nn::Value::list({nn::Value::list(inputs.positional), nn::Value::map(inputs.named)});
    all = nn::with_tensors(all, watch_gradients(nn::tensors_of(all), [this, id](const Gradients&) {
                             here();
                             planner_.backward_leaves(id);
                           }));
    inputs.positional = all.items()[0].items();
    inputs.named = all.items()[1].entries();
  });
  module->add_post_forward([this, id](nn::Module&, const nn::Inputs&, nn::Value& outputs) {
    here();
    if (!planner_.leave(id, {grad_enabled(), in_backward()})) return;
    outputs = nn::with_tensors(outputs, watch_gradients(nn::tensors_of(outputs), [this, id](const Gradients&) {
                                 here();
                                 planner_.backward_reaches(id);
                               }));
  });
}

// ---- steps ----
void PlanTrace::note(const std::string& what, const Error& error) { unknown_.push_back(str(what, ": ", error.what())); }

Value PlanTrace::perform(StepCall& call) {
  const std::string_view verb = scenario::name_of(call.step.verb);
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

Value PlanTrace::perform_applying(StepCall& call, std::string_view verb) {
  here();
  if (verb == "replicate") {
    replicate(call);
  } else if (verb == "fully_shard") {
    fully_shard(call);
  } else if (verb == "set_flags") {
    set_flags(call);
  } else if (verb == "prefetch") {
    prefetch(call);
  } else if (verb == "unshard") {
    const bool async = call.boolean("async");
    for (const plan::ModuleId id : watched_ids(call, "modules")) planner_.shards().unshard(id, async);
  } else if (verb == "reshard") {
    for (const plan::ModuleId id : watched_ids(call, "modules")) planner_.shards().reshard(id);
  } else if (verb == "register_forward_method") {
    call.module("module").module->register_forward_method(call.text("method"));
  } else if (verb == "activation_checkpoint") {
    // It communicates nothing: what it runs again is part of the trace.
    return run_verb(call);
  } else if (verb == "tensor_parallel" && cut_for_tensor_parallel(call)) {
    return Value();
  } else if (not_planned_.empty()) {
    not_planned_ = verb;
  }
  return Value();
}

std::vector<plan::ModuleId> PlanTrace::watched_ids(StepCall& call, const char* name) {
  std::vector<plan::ModuleId> ids;
  for (const ModuleAt& found : call.modules(name)) {
    refresh(found.module);
    ids.push_back(id_of(found.module));
  }
  return ids;
}

void PlanTrace::replicate(StepCall& call) {
  plan::ReplicateChoices choices;
  choices.axes = axes_of(*call.mesh());
  for (const plan::ModuleId id : call.has("ignored") ? watched_ids(call, "ignored") : std::vector<plan::ModuleId>())
    choices.ignored.insert(id);
  if (call.given("bucket_cap_mb"))
    choices.bucket_cap_bytes = static_cast<std::int64_t>(call.number("bucket_cap_mb") * 1024 * 1024);
  choices.find_unused_parameters = call.boolean("find_unused_parameters");
  choices.broadcast_buffers = call.boolean("broadcast_buffers");
  for (const ModuleAt& found : call.modules("modules")) {
    watch(found.module);
    choices.owner = found.path;
    planner_.replicate(id_of(found.module), choices);
  }
}

void PlanTrace::fully_shard(StepCall& call) {
  plan::ShardChoices choices;
  const std::vector<plan::Axis> axes = axes_of(*call.mesh());
  choices.shard = axes.back();
  if (axes.size() == 2) choices.replicate = axes.front();
  if (call.has("reshard_after_forward"))
    choices.reshard_after_forward = reshard_of(call.value("reshard_after_forward"));
  if (const Value types = call.value("mixed_precision"); !types.is_none()) {
    const auto type = [&](const char* key) -> std::optional<DType> {
      const Value* found = types.find(Key(key));
      if (!found || found->is_none()) return std::nullopt;
      return found->as_dtype(key);
    };
    choices.param = type("param");
    choices.reduce = type("reduce");
  }
  const std::vector<ModuleAt> found = call.modules("modules");
  if (call.boolean("together")) return shard_together(call, found, choices);
  for (const ModuleAt& at : found) shard_together(call, {at}, choices);
}

void PlanTrace::shard_together(StepCall& call, const std::vector<ModuleAt>& found, plan::ShardChoices choices) {
  std::vector<plan::ModuleId> ids;
  const Value dims = call.value("shard_dim");
  for (const ModuleAt& at : found) {
    choices.owner += str(choices.owner.empty() ? "" : "+", at.path);
    watch(at.module);
    ids.push_back(id_of(at.module));
    for (const nn::NamedParameter& parameter : nn::named_parameters(at.module)) {
      if (!dims.is(Value::Kind::map)) {
        choices.dims[id_of(parameter.tensor())] = static_cast<int>(dims.as_int("shard_dim"));
        continue;
      }
      for (const auto& [pattern, dim] : dims.as_map("shard_dim"))
        if (glob_matches(pattern.text, parameter.path)) {
          choices.dims[id_of(parameter.tensor())] = static_cast<int>(dim.as_int("shard_dim"));
          break;
        }
    }
  }
  for (auto& [id, dim] : choices.dims) {
    const int num_dims = tensors_[static_cast<std::size_t>(id)].num_dims();
    if (dim < 0) dim += num_dims;
    if (dim < 0 || dim >= num_dims)
      throw Unforeseeable(str("a parameter of ", num_dims, " dims is cut along dim ", dim));
  }
  plan::Planner::Ignored ignored;
  for (const std::string& path : call.words("ignored")) {
    try {
      for (const ModuleAt& one : find_modules(path, call.scope)) ignored.modules.insert(id_of(one.module));
    } catch (const UnboundName&) {
      throw;
    } catch (const Error&) {
      for (const TensorAt& one : find_parameters(path, call.scope)) ignored.parameters.insert(id_of(one.tensor()));
    }
  }
  planner_.fully_shard(ids, std::move(choices), ignored);
}

void PlanTrace::set_flags(StepCall& call) {
  plan::FlagChange flags;
  const auto flag = [&](const char* name) {
    return scenario::spec_of(call.step.verb).index_of(name) ? call.maybe_boolean(name) : std::nullopt;
  };
  flags.requires_gradient_sync = flag("requires_gradient_sync");
  flags.requires_all_reduce = flag("requires_all_reduce");
  flags.is_last_backward = flag("is_last_backward");
  flags.reshard_after_backward = flag("reshard_after_backward");
  if (call.has("reshard_after_forward")) flags.reshard_after_forward = reshard_of(call.value("reshard_after_forward"));
  const bool recurse = call.boolean("recurse");
  for (const plan::ModuleId id : watched_ids(call, "modules")) planner_.set_flags(id, flags, recurse);
}

// Tensor parallelism leaves the model plain here: what it issues is not planned, but groups over it hold its parts.
// Says whether the styles could be read: `plan` is a map of calls.
bool PlanTrace::cut_for_tensor_parallel(StepCall& call) {
  const nn::ModulePtr model = call.module("model").module;
  const MeshPtr mesh = call.mesh();
  const scenario::Expr& styles = call.expr("plan");
  if (styles.kind != scenario::ExprKind::map || mesh->num_axes() != 1) return false;
  const int parts = mesh->num_ranks(), mine = mesh->coordinates().front();
  for (std::size_t i = 0; i + 1 < styles.children.size(); i += 2) {
    const scenario::Expr& style = *styles.children[i + 1];
    if (style.kind != scenario::ExprKind::call || style.children[0]->kind != scenario::ExprKind::name) return false;
    const std::string& name = style.children[0]->name;
    if (name != "colwise" && name != "rowwise") continue;
    const std::string pattern = evaluate(*styles.children[i], call.scope).as_text("a path of `plan`");
    for (const ModuleAt& found : match_modules(model, pattern)) {
      const bool table = found.module->type() == "Embedding";
      if (!table && found.module->type() != "Linear") return false;
      for (const nn::ParameterSlot& slot : found.module->parameters) {
        if (!slot.tensor.defined()) continue;
        const bool whole_bias = name == "rowwise" && slot.name == "bias";
        // Columns of what comes out are rows of a linear's weight, and columns of a table.
        if (!whole_bias) cuts_[id_of(slot.tensor)] = {(name == "colwise") != table ? 0 : 1, parts, mine};
      }
    }
  }
  refresh(model);
  return true;
}

Dims PlanTrace::sizes_of_part(const Tensor& tensor) {
  Dims sizes = tensor.sizes();
  if (const auto at = cuts_.find(id_of(tensor)); at != cuts_.end()) {
    const Cut& cut = at->second;
    sizes[cut.dim] = layout::chunk(sizes[cut.dim], cut.parts, cut.mine).length;
  }
  return sizes;
}

void PlanTrace::prefetch(StepCall& call) {
  const plan::ModuleId of = watched_ids(call, "module").front();
  if (call.has("forward")) planner_.shards().set_forward_prefetch(of, watched_ids(call, "forward"));
  if (call.has("backward")) planner_.shards().set_backward_prefetch(of, watched_ids(call, "backward"));
}

Value PlanTrace::build_model(StepCall& call) {
  nn::BuildOptions options;
  options.device = meta;
  options.dtype = call.value("dtype").as_dtype("dtype");
  const NoGrad no_grad;
  Scope building = call.scope;
  building.building = &options;
  nn::ModulePtr module = evaluate(call.expr("build"), building).as_module("build");
  nn::name_parameters(module);
  return Value(std::move(module));
}

// The shape of what a collective of the scenario would give; they are steps themselves, so that nothing is planned.
Value PlanTrace::shape_of_collective(StepCall& call, std::string_view verb) {
  if (!among(verb, {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})) return Value();
  const MeshPtr mesh = call.mesh();
  if (verb == "gather")
    return Value::list(List(static_cast<std::size_t>(mesh->num_ranks()), Value(call.tensor("tensor"))));
  if (verb == "scatter") return call.list("tensors").empty() ? Value() : call.list("tensors").front();
  const Tensor tensor = detach(call.tensor("tensor"));
  if (verb == "all_to_all") return Value(tensor);
  Dims sizes = tensor.sizes();
  const int dim = normalize_dim(static_cast<int>(call.integer("dim")), sizes.size(), "dim");
  sizes[dim] = verb == "all_gather" ? sizes[dim] * mesh->num_ranks() : sizes[dim] / mesh->num_ranks();
  return Value(empty(sizes, tensor.dtype(), meta));
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
  const auto world =
      device::HostWorld::create(world_size, device::Sharing::threads, arena_bytes, comm::control_bytes(world_size));
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
