// replicate, fully_shard, unshard, reshard, wait, set_flags, prefetch, register_forward_method, set_post_optim_event.
#include <set>

#include "engine/core/checked.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/replicate.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run::verbs {

namespace {

parallel::ReshardAfterForward reshard_after_forward_of(const Value& value) {
  if (const bool* flag = value.get_if<bool>()) return parallel::ReshardAfterForward::of(*flag);
  if (value.is(Value::Kind::integer))
    return parallel::ReshardAfterForward::among(
        checked_int(value.as_int("reshard_after_forward"), "reshard_after_forward"));
  throw Error(str("`reshard_after_forward` is true, false or a number of ranks, not ", describe(value)));
}

parallel::MixedPrecision mixed_precision_of(const Value& value) {
  parallel::MixedPrecision precision;
  if (value.is_none()) return precision;
  for (const auto& [key, item] : value.as_map("mixed_precision")) {
    const auto type = [&key = key, &item = item]() -> std::optional<DType> {
      if (item.is_none()) return std::nullopt;
      return item.as_dtype(str("`", key.text, "` of mixed_precision"));
    };
    if (key.text == "param")
      precision.param = type();
    else if (key.text == "reduce")
      precision.reduce = type();
    else if (key.text == "output")
      precision.output = type();
    else if (key.text == "cast_forward_inputs")
      precision.cast_forward_inputs = item.as_bool("cast_forward_inputs");
    else
      throw Error(str("mixed_precision has no `", key.text, "`",
                      scenario::suggestion(key.text, {"param", "reduce", "output", "cast_forward_inputs"})));
  }
  return precision;
}

parallel::Offload offload_of(const std::string& word) {
  if (word == "none") return parallel::Offload::none;
  return word == "cpu" ? parallel::Offload::cpu : parallel::Offload::cpu_pinned;
}

// Paths of modules, or of parameters.
void add_ignored(const StepCall& call, parallel::FullyShardOptions& options) {
  for (const std::string& path : call.words("ignored")) {
    std::vector<ModuleAt> modules;
    try {
      modules = find_modules(path, call.scope);
    } catch (const UnboundName&) {
      throw;
    } catch (const Error&) {
      for (const TensorAt& found : find_parameters(path, call.scope))
        options.ignored_parameters.push_back(found.tensor());
    }
    for (const ModuleAt& found : modules) options.ignored.push_back(found.module);
  }
}

// The dim of each parameter: one for all, or by its path below the module.
class ShardDims {
 public:
  explicit ShardDims(const Value& value) {
    if (value.is(Value::Kind::map))
      for (const auto& [path, dim] : value.as_map("shard_dim"))
        by_path_.emplace_back(path.text, checked_int(dim.as_int(path.text), "shard_dim"));
    else
      for_all_ = checked_int(value.as_int("shard_dim"), "shard_dim");
  }
  int dim_of(const std::string& path) {
    for (const auto& [pattern, dim] : by_path_)
      if (glob_matches(pattern, path)) {
        used_.insert(pattern);
        return dim;
      }
    return for_all_;
  }
  void check_used() const {
    for (const auto& [pattern, dim] : by_path_)
      if (!used_.contains(pattern)) throw Error(str("`", pattern, "` of shard_dim matches no parameter of the group"));
  }

 private:
  int for_all_ = 0;
  std::vector<std::pair<std::string, int>> by_path_;
  std::set<std::string> used_;
};

void shard_group(const std::vector<ModuleAt>& found, parallel::FullyShardOptions& options) {
  std::vector<nn::ModulePtr> modules;
  options.name.clear();
  for (const ModuleAt& at : found) {
    modules.push_back(at.module);
    options.name += str(options.name.empty() ? "" : "+", at.path);
  }
  parallel::fully_shard(modules, options);
  note_owner(options.name, modules);
}

std::vector<nn::ModulePtr> modules_of(const StepCall& call, const char* name) {
  std::vector<nn::ModulePtr> modules;
  for (const ModuleAt& found : call.modules(name)) modules.push_back(found.module);
  return modules;
}

}  // namespace

Value replicate(StepCall& call) {
  parallel::ReplicateOptions options;
  options.mesh = *call.mesh();
  if (call.has("ignored")) options.ignored = modules_of(call, "ignored");
  // The usual size of the first bucket is another when none is asked for.
  if (call.given("bucket_cap_mb")) options.bucket_cap_mb = call.number("bucket_cap_mb");
  options.gradient_as_bucket_view = call.boolean("gradient_as_bucket_view");
  options.find_unused_parameters = call.boolean("find_unused_parameters");
  options.broadcast_buffers = call.boolean("broadcast_buffers");
  options.device_id = to_nn(call.value("device_id"));
  for (const ModuleAt& found : call.modules("modules")) {
    options.name = found.path;
    parallel::replicate(found.module, options);
  }
  return Value();
}

Value fully_shard(StepCall& call) {
  parallel::FullyShardOptions options;
  options.mesh = *call.mesh();
  options.device = call.in.session().device;
  if (call.has("reshard_after_forward"))
    options.reshard_after_forward = reshard_after_forward_of(call.value("reshard_after_forward"));
  options.offload = offload_of(call.text("offload"));
  options.mixed_precision = mixed_precision_of(call.value("mixed_precision"));
  add_ignored(call, options);
  const auto dims = std::make_shared<ShardDims>(call.value("shard_dim"));
  options.shard_dim = [dims](const std::string& path, const Tensor&) { return dims->dim_of(path); };
  const std::vector<ModuleAt> found = call.modules("modules");
  if (call.boolean("together")) {
    shard_group(found, options);
  } else {
    for (const ModuleAt& at : found) shard_group({at}, options);
  }
  dims->check_used();
  return Value();
}

Value unshard(StepCall& call) {
  const bool async = call.boolean("async");
  auto handles = std::make_shared<std::vector<parallel::UnshardHandle>>();
  for (const nn::ModulePtr& module : modules_of(call, "modules")) handles->push_back(parallel::unshard(module, async));
  if (!async) return Value();
  Handle handle;
  handle.finish = [handles] {
    for (parallel::UnshardHandle& one : *handles) one.wait();
    handles->clear();
  };
  return Value(std::move(handle));
}

Value reshard(StepCall& call) {
  for (const nn::ModulePtr& module : modules_of(call, "modules")) parallel::reshard(module);
  return Value();
}

Value wait(StepCall& call) {
  const Value target = call.value("for");
  if (const Handle* handle = target.get_if<Handle>())
    handle->wait();
  else if (const device::Event* event = target.get_if<device::Event>())
    device::current_stream(call.in.session().device).wait(*event);
  else
    throw Error(str("`wait` is for a handle or an event, not for ", describe(target)));
  return Value();
}

Value set_flags(StepCall& call) {
  const std::vector<ModuleAt> modules = call.modules("modules");
  const bool recurse = call.boolean("recurse");
  const std::optional<bool> sync = call.maybe_boolean("requires_gradient_sync");
  parallel::ShardFlags flags;
  flags.requires_all_reduce = call.maybe_boolean("requires_all_reduce");
  flags.is_last_backward = call.maybe_boolean("is_last_backward");
  flags.reshard_after_backward = call.maybe_boolean("reshard_after_backward");
  if (call.has("reshard_after_forward"))
    flags.reshard_after_forward = reshard_after_forward_of(call.value("reshard_after_forward"));
  flags.reduce_divide_factor = call.maybe_number("reduce_divide_factor");
  const bool of_shards = flags.requires_all_reduce || flags.is_last_backward || flags.reshard_after_backward ||
                         flags.reshard_after_forward || flags.reduce_divide_factor;
  flags.requires_gradient_sync = sync;
  if (!sync && !of_shards) throw Error("set_flags changes nothing", "give one of its flags");
  int sharded = 0, replicated = 0;
  for (const ModuleAt& found : modules) {
    sharded += parallel::set_flags(found.module, flags, recurse);
    if (sync) replicated += parallel::set_requires_gradient_sync(found.module, *sync, recurse);
  }
  const std::string where = str("`", modules.front().path, "`", recurse ? " or below" : "");
  if (of_shards && sharded == 0)
    throw Error(str("set_flags: nothing is sharded at ", where), "apply fully_shard first");
  if (sharded + replicated == 0)
    throw Error(str("set_flags: nothing that synchronises gradients is applied to ", where),
                "apply replicate or fully_shard first");
  return Value();
}

Value prefetch(StepCall& call) {
  const ModuleAt module = call.module("module");
  if (!call.has("forward") && !call.has("backward"))
    throw Error("prefetch changes nothing", "give `forward`, `backward` or both");
  if (call.has("forward")) parallel::set_forward_prefetch(module.module, modules_of(call, "forward"));
  if (call.has("backward")) parallel::set_backward_prefetch(module.module, modules_of(call, "backward"));
  return Value();
}

Value register_forward_method(StepCall& call) {
  parallel::register_forward_method(call.module("module").module, call.text("method"));
  return Value();
}

Value set_post_optim_event(StepCall& call) {
  const Value event = call.value("event");
  const device::Event* found = event.get_if<device::Event>();
  if (!found) throw Error(str("`event` must be an event, not ", describe(event)), "record_event gives one");
  parallel::set_post_optim_event(call.module("module").module, *found);
  return Value();
}

}  // namespace lockstep::run::verbs
