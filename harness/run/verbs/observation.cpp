// observe, hook, record_event, record.
#include "harness/run/observe/observation.hpp"

#include <chrono>

#include "engine/autograd/checkpoint.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/device/allocations.hpp"
#include "engine/parallel/flat_units.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

// The steps of a hook and the frame they were written in. The interpreter outlives every module of its case.
struct HookBody {
  Interpreter& in;
  const scenario::Step& step;
  FramePtr frame;

  void run(std::vector<std::pair<std::string, Value>> names) const {
    const Locals locals{nullptr, std::move(names)};
    Scope scope{frame};
    scope.locals = &locals;
    in.run_hook(step.steps, scope);
  }
};

Value positional_of(const nn::Inputs& inputs) {
  List items;
  for (const nn::Structure& value : inputs.positional) items.push_back(from_nn(value));
  return Value::list(std::move(items));
}

Value named_of(const nn::Inputs& inputs) {
  Map entries;
  for (const auto& [name, value] : inputs.named) entries.emplace_back(name, from_nn(value));
  return Value::map(std::move(entries));
}

void hook_module(StepCall& call, const nn::ModulePtr& module, const std::string& at, const HookBody& body) {
  using Place = nn::Module::Place;
  const auto self = [](nn::Module& of) { return Value(of.shared_from_this()); };
  const auto recomputing = [] { return Value(lockstep::recomputing()); };
  if (at == "before_forward") {
    module->add_pre_forward(
        [body, self, recomputing](nn::Module& of, nn::Inputs& inputs) {
          body.run({{"module", self(of)},
                    {"inputs", positional_of(inputs)},
                    {"named_inputs", named_of(inputs)},
                    {"recomputing", recomputing()}});
        },
        Place::user);
  } else if (at == "after_forward") {
    module->add_post_forward(
        [body, self, recomputing](nn::Module& of, const nn::Inputs& inputs, nn::Structure& outputs) {
          body.run({{"module", self(of)},
                    {"inputs", positional_of(inputs)},
                    {"named_inputs", named_of(inputs)},
                    {"outputs", from_nn(outputs)},
                    {"recomputing", recomputing()}});
        },
        Place::user);
  } else if (at == "before_backward") {
    module->add_pre_backward([body, self](nn::Module& of) { body.run({{"module", self(of)}}); }, Place::user);
  } else if (at == "after_backward") {
    module->add_post_backward([body, self](nn::Module& of) { body.run({{"module", self(of)}}); }, Place::user);
  } else if (at == "before_all_gather" || at == "before_reduce_scatter" || at == "before_all_reduce") {
    // A weak pointer, because the module owns the hook.
    auto run = [body, of = std::weak_ptr<nn::Module>(module)] { body.run({{"module", Value(of.lock())}}); };
    if (at == "before_all_reduce" && !parallel::is_fully_sharded(module))
      return call.live().add_before_all_reduce(module, std::move(run));
    using parallel::ShardPoint;
    const ShardPoint point = at == "before_all_gather"       ? ShardPoint::before_all_gather
                             : at == "before_reduce_scatter" ? ShardPoint::before_reduce_scatter
                                                             : ShardPoint::before_all_reduce;
    parallel::add_shard_hook(module, point, std::move(run));
  } else {
    throw Error(str("`", at, "` does not go with `modules`"));
  }
}

}  // namespace

Value observe(StepCall& call) {
  unsigned mask = 0;
  for (const std::string& purpose : call.words("memory"))
    mask |= 1u << static_cast<unsigned>(device::purpose_from_name(purpose));
  if (mask == 0) mask = (1u << device::num_purposes) - 1;
  const device::MemoryWindow window(mask);
  const std::int64_t allocations = device::num_allocations(mask), work = call.live().num_working_steps();
  const std::size_t first = comm::log().size(), first_event = parallel::events().size();
  const bool records_launches = call.boolean("launches");
  const std::size_t first_launch = records_launches ? call.live().launch_checks().num_traced() : 0;
  const ComputationCount computations;
  const auto start = std::chrono::steady_clock::now();
  call.in.run_steps(call.step.steps, call.scope);
  auto seen = std::make_shared<Observation>();
  seen->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  seen->computations = computations.counts();
  if (records_launches) seen->launches = LaunchRange{first_launch, call.live().launch_checks().num_traced()};
  seen->peak_bytes = window.peak_bytes();
  seen->allocated = device::num_allocations(mask) > allocations;
  seen->worked = call.live().num_working_steps() > work;
  const std::vector<comm::LogEntry>& log = comm::log();
  seen->collectives.assign(log.begin() + static_cast<std::ptrdiff_t>(first), log.end());
  const std::vector<parallel::ParallelEvent>& events = parallel::events();
  seen->events.assign(events.begin() + static_cast<std::ptrdiff_t>(first_event), events.end());
  seen->has_all_events = events.size() < parallel::most_events;
  return Value(std::shared_ptr<const Observation>(std::move(seen)));
}

Value hook(StepCall& call) {
  const std::string at = call.text("at");
  const HookBody body{call.in, call.step, call.scope.frame};
  call.in.clear_at_end(call.scope.frame);
  if (call.has("modules")) {
    for (const ModuleMatch& found : call.modules("modules")) hook_module(call, found.module, at, body);
  } else if (call.has("parameters")) {
    if (at != "after_gradient") throw Error(str("`", at, "` does not go with `parameters`"));
    const std::vector<TensorMatch> parameters = call.parameters("parameters");
    for (const TensorMatch& found : parameters)
      if (const std::string owner = parallel::owner_of_summoned(found.tensor()); !owner.empty())
        throw Error(str("hook: the full parameters of ", owner, " are summoned, and the hook would end with them"),
                    "add it before or after summon_full_parameters");
    const auto add = [&body](const Tensor& tensor) {
      add_post_accumulate_hook(tensor, [body](const Tensor& leaf) { body.run({{"parameter", Value(leaf)}}); });
    };
    for (const TensorMatch& found : parameters) {
      add(found.tensor());
      if (!found.owner || found.buffer) continue;
      // While its group is unsharded, the slot holds another tensor than the optimizer.
      const Tensor& trained = found.owner->parameters[found.slot].trained();
      if (!trained.same_as(found.tensor())) add(trained);
    }
  } else if (call.has("optimizer")) {
    const OptimizerPtr optimizer = call.value("optimizer").as_optimizer("optimizer");
    const auto run = [body](optim::Optimizer&) { body.run({}); };
    if (at == "before_step")
      optimizer->add_before_step(run);
    else if (at == "after_step")
      optimizer->add_after_step(run);
    else
      throw Error(str("`", at, "` does not go with `optimizer`"));
  } else {
    throw Error("a hook needs `modules`, `parameters` or `optimizer`");
  }
  return Value();
}

Value record_event(StepCall& call) {
  const std::string name = call.text("stream");
  const device::Device device = call.in.session().device;
  if (name == "current") return Value(device::current_stream(device).record());
  for (int i = 0; i < device::num_roles; ++i) {
    const auto role = static_cast<device::Role>(i);
    if (name_of(role) == name) return Value(device::stream(device, role).record());
  }
  throw Error(str("unknown stream `", name, "`"));
}

Value record(StepCall& call) {
  const NoGrad no_grad;
  for (const scenario::NamedExpr& entry : call.step.entries) {
    const Value value = evaluate(*entry.value, call.scope);
    call.live().record(entry.name,
                       to_literal(value, static_cast<std::int64_t>(scenario::limits::recorded_numbers)).json());
  }
  return Value();
}

}  // namespace lockstep::run::verbs
