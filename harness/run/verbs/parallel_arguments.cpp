#include "harness/run/verbs/parallel_arguments.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "engine/core/checked.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

namespace {

std::optional<ReshardArgument> reshard_argument(const StepCall& call) {
  if (!call.has("reshard_after_forward")) return std::nullopt;
  const Value value = call.value("reshard_after_forward");
  if (const bool* flag = value.get_if<bool>()) return *flag;
  if (value.is(Value::Kind::integer))
    return checked_int(value.as_int("reshard_after_forward"), "reshard_after_forward");
  throw Error(str("`reshard_after_forward` is true, false or a number of ranks, not ", describe(value)));
}

MixedPrecisionArgument mixed_precision_argument(const Value& value) {
  MixedPrecisionArgument precision;
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

OffloadArgument offload_argument(const std::string& word) {
  if (word == "none") return OffloadArgument::none;
  return word == "cpu" ? OffloadArgument::cpu : OffloadArgument::cpu_pinned;
}

// A path of `ignored` names modules or, if it matches none, parameters.
template <class Arguments>
void read_ignored(const StepCall& call, Arguments& arguments) {
  for (const std::string& path : call.words("ignored")) {
    std::vector<ModuleMatch> modules;
    try {
      modules = find_modules(path, call.scope);
    } catch (const UnboundName&) {
      throw;
    } catch (const Error&) {
      for (TensorMatch& found : find_parameters(path, call.scope))
        arguments.ignored_parameters.push_back(std::move(found));
    }
    for (ModuleMatch& found : modules) arguments.ignored_modules.push_back(std::move(found));
  }
}

}  // namespace

// ---- shard_dim ----
ShardDimArgument::ShardDimArgument(const Value& value) {
  if (value.is(Value::Kind::map))
    for (const auto& [pattern, dim] : value.as_map("shard_dim"))
      by_pattern_.push_back({pattern.text, checked_int(dim.as_int(pattern.text), "shard_dim")});
  else
    for_all_ = checked_int(value.as_int("shard_dim"), "shard_dim");
}

std::optional<int> ShardDimArgument::stated_for(const std::string& path) {
  for (Entry& entry : by_pattern_)
    if (glob_matches(entry.pattern, path)) {
      entry.has_matched = true;
      return entry.dim;
    }
  return for_all_;
}

void ShardDimArgument::check_all_matched() const {
  for (const Entry& entry : by_pattern_)
    if (!entry.has_matched)
      throw Error(str("`", entry.pattern, "` of shard_dim matches no parameter of the group"),
                  "of several patterns that match a parameter, the first counts");
}

// ---- verbs ----
ReplicateArguments replicate_arguments(const StepCall& call) {
  ReplicateArguments arguments;
  arguments.mesh = call.mesh();
  if (call.has("ignored")) arguments.ignored = call.modules("ignored");
  if (call.given("bucket_cap_mb")) arguments.bucket_cap_mb = call.number("bucket_cap_mb");
  arguments.gradient_as_bucket_view = call.boolean("gradient_as_bucket_view");
  arguments.find_unused_parameters = call.boolean("find_unused_parameters");
  arguments.broadcast_buffers = call.boolean("broadcast_buffers");
  arguments.device_id = call.value("device_id");
  arguments.modules = call.modules("modules");
  return arguments;
}

FullyShardArguments fully_shard_arguments(const StepCall& call) {
  FullyShardArguments arguments{.groups = {},
                                .mesh = call.mesh(),
                                .reshard_after_forward = reshard_argument(call),
                                .offload = offload_argument(call.text("offload")),
                                .mixed_precision = mixed_precision_argument(call.value("mixed_precision")),
                                .ignored_modules = {},
                                .ignored_parameters = {},
                                .shard_dim = ShardDimArgument(call.value("shard_dim"))};
  read_ignored(call, arguments);
  std::vector<ModuleMatch> modules = call.modules("modules");
  if (call.boolean("together"))
    arguments.groups.push_back(std::move(modules));
  else
    for (ModuleMatch& module : modules) arguments.groups.push_back({std::move(module)});
  return arguments;
}

namespace {

FlatPrecisionArgument flat_precision_argument(const Value& value) {
  FlatPrecisionArgument precision;
  if (value.is_none()) return precision;
  const std::map<std::string, std::optional<DType>*> types = {
      {"param", &precision.param}, {"reduce", &precision.reduce}, {"buffer", &precision.buffer}};
  const std::map<std::string, bool*> flags = {
      {"cast_forward_inputs", &precision.cast_forward_inputs},
      {"cast_root_forward_inputs", &precision.cast_root_forward_inputs},
      {"keep_low_precision_gradients", &precision.keep_low_precision_gradients}};
  for (const auto& [key, item] : value.as_map("mixed_precision")) {
    if (const auto type = types.find(key.text); type != types.end()) {
      if (!item.is_none()) *type->second = item.as_dtype(str("`", key.text, "` of mixed_precision"));
    } else if (const auto flag = flags.find(key.text); flag != flags.end()) {
      *flag->second = item.as_bool(key.text);
    } else {
      throw Error(str("mixed_precision has no `", key.text, "`",
                      scenario::suggestion(key.text, {"param", "reduce", "buffer", "cast_forward_inputs",
                                                      "cast_root_forward_inputs", "keep_low_precision_gradients"})));
    }
  }
  return precision;
}

// The position of a word among the choices of its argument.
template <class Choice>
Choice choice_of(const std::string& word, std::initializer_list<std::string_view> words) {
  return static_cast<Choice>(std::find(words.begin(), words.end(), word) - words.begin());
}

}  // namespace

FlatShardArguments flat_shard_arguments(const StepCall& call) {
  FlatShardArguments arguments;
  arguments.mesh = call.mesh();
  arguments.strategy = choice_of<FlatStrategyArgument>(
      call.text("strategy"), {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_grad_op"});
  arguments.unit_types = call.words("unit_types");
  arguments.offload = call.text("offload") != "none";
  arguments.mixed_precision = flat_precision_argument(call.value("mixed_precision"));
  arguments.original_parameters = call.boolean("use_orig_params");
  arguments.sync_module_states = call.boolean("sync_module_states");
  arguments.backward_prefetch =
      choice_of<PrefetchArgument>(call.text("backward_prefetch"), {"before", "after", "none"});
  arguments.forward_prefetch = call.boolean("forward_prefetch");
  read_ignored(call, arguments);
  arguments.modules = call.modules("modules");
  return arguments;
}

FlagArguments flag_arguments(const StepCall& call) {
  FlagArguments arguments;
  arguments.modules = call.modules("modules");
  arguments.recurse = call.boolean("recurse");
  arguments.requires_gradient_sync = call.maybe_boolean("requires_gradient_sync");
  arguments.requires_all_reduce = call.maybe_boolean("requires_all_reduce");
  arguments.is_last_backward = call.maybe_boolean("is_last_backward");
  arguments.reshard_after_backward = call.maybe_boolean("reshard_after_backward");
  arguments.reshard_after_forward = reshard_argument(call);
  arguments.reduce_divide_factor = call.maybe_number("reduce_divide_factor");
  return arguments;
}

PrefetchArguments prefetch_arguments(const StepCall& call) {
  PrefetchArguments arguments;
  arguments.module = call.module("module");
  if (!call.has("forward") && !call.has("backward"))
    throw Error("prefetch changes nothing", "give `forward`, `backward` or both");
  if (call.has("forward")) arguments.forward = call.modules("forward");
  if (call.has("backward")) arguments.backward = call.modules("backward");
  return arguments;
}

// ---- extend_gather ----
namespace {

Value list_of(const Dims& sizes) {
  List items;
  for (const std::int64_t size : sizes) items.push_back(Value(size));
  return Value::list(std::move(items));
}

std::vector<Tensor> tensors_in(const Value& value) {
  if (!value.is(Value::Kind::list)) return {value.as_tensor("the result of `send`")};
  std::vector<Tensor> tensors;
  for (const Value& item : value.as_list("the result of `send`")) tensors.push_back(item.as_tensor("a tensor to send"));
  return tensors;
}

}  // namespace

Value gather_site_value(const GatherSiteFields& site) {
  Map map;
  map.emplace_back("name", Value(site.name));
  map.emplace_back("mesh", Value(site.mesh));
  map.emplace_back("shape", list_of(site.shape));
  map.emplace_back("dim", Value(std::int64_t{site.dim}));
  map.emplace_back("part_shape", list_of(site.part_shape));
  map.emplace_back("dtype", Value(site.dtype));
  return Value::map(std::move(map));
}

SentTensors sent_tensors(const Value& returned) {
  if (!returned.is(Value::Kind::map)) return {tensors_in(returned), Value()};
  const Value* tensors = returned.find(Key("tensors"));
  const Value* metadata = returned.find(Key("metadata"));
  if (!tensors || !metadata || returned.as_map("map").size() != 2)
    throw Error("extend_gather: the keys of the map that `send` returns are not `tensors` and `metadata`",
                "return a tensor, a list of tensors, or {'tensors': [...], 'metadata': ...}");
  return {tensors_in(*tensors), *metadata};
}

}  // namespace lockstep::run
