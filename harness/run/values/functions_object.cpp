// Functions of modules, optimizers, memory and observations.
#include "engine/device/allocations.hpp"
#include "engine/device/device.hpp"
#include "engine/parallel/flat_state_dict.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

const nn::ModulePtr& module_of(const CallArguments& call) { return call.at(0, "module").as_module("module"); }

}  // namespace

Value parameters(const CallArguments& call) {
  List items;
  for (const nn::NamedParameter& entry : nn::named_parameters(module_of(call))) items.push_back(Value(entry.tensor()));
  return Value::list(std::move(items));
}

Value buffers(const CallArguments& call) {
  List items;
  for (const nn::NamedBuffer& entry : nn::named_buffers(module_of(call))) items.push_back(Value(entry.tensor()));
  return Value::list(std::move(items));
}

Value names(const CallArguments& call) {
  List items;
  for (const nn::NamedParameter& entry : nn::named_parameters(module_of(call))) items.push_back(Value(entry.path));
  return Value::list(std::move(items));
}

Value draws(const CallArguments& call) {
  if (call.scope.session().is_dry_run) throw UnknownBeforeRun("the number of draws");
  List items;
  for (const nn::NamedParameter& entry : nn::named_parameters(module_of(call)))
    items.push_back(Value(std::int64_t{entry.owner->parameters[entry.slot].num_draws}));
  return Value::list(std::move(items));
}

Value modules(const CallArguments& call) {
  const std::string& type = call.at(1, "type").as_text("type");
  List items;
  for (const nn::NamedModule& entry : nn::named_modules(module_of(call)))
    if (entry.module->type() == type) items.push_back(Value(entry.module));
  return Value::list(std::move(items));
}

// Relative to a bound model that contains the module; the longest path if there are several.
Value path(const CallArguments& call) {
  const nn::ModulePtr& module = module_of(call);
  const std::string* best = nullptr;
  std::string found;
  for (const auto& [name, value] : call.scope.frame->names) {
    const nn::ModulePtr* root = value.get_if<nn::ModulePtr>();
    if (!root || *root == module) continue;
    for (const nn::NamedModule& entry : nn::named_modules(*root))
      if (entry.module == module && (!best || entry.path.size() > found.size())) {
        found = entry.path;
        best = &found;
      }
  }
  return Value(found);
}

Value applied(const CallArguments& call) {
  if (call.scope.session().is_dry_run) throw UnknownBeforeRun("applied()");
  Map apis;
  for (const auto& [api, record] : module_of(call)->applied) {
    Map settings;
    for (const auto& [key, value] : record.settings) settings.emplace_back(key, from_nn(value));
    set_entry(settings, "parameters", Value::texts(record.parameter_names));
    apis.emplace_back(api, Value::map(std::move(settings)));
  }
  return Value::map(std::move(apis));
}

Value state_dict_type(const CallArguments& call) {
  if (call.scope.session().is_dry_run) throw UnknownBeforeRun("state_dict_type()");
  return Value(std::string(name_of(parallel::state_dict_settings(module_of(call)).type)));
}

Value tensors(const CallArguments& call) {
  List items;
  for (const auto& [name, tensor] : call.at(0, "optimizer").as_optimizer("optimizer")->state_tensors())
    items.push_back(Value(tensor));
  return Value::list(std::move(items));
}

Value memory(const CallArguments& call) {
  if (call.scope.session().is_dry_run) throw UnknownBeforeRun("memory()");
  const Value& purposes = call.at(0, "purposes");
  const device::MemoryStats stats = device::memory_stats();
  std::int64_t bytes = 0;
  const List list = purposes.is(Value::Kind::list) ? purposes.as_list("purposes") : List{purposes};
  for (const Value& purpose : list)
    bytes += stats.current[static_cast<std::size_t>(device::purpose_from_name(purpose.as_text("a purpose")))];
  return Value(bytes);
}

Value reserved_memory(const CallArguments& call) {
  if (call.scope.session().is_dry_run) throw UnknownBeforeRun("reserved_memory()");
  return Value(device::reserved_bytes(device::device_from_name(call.at(0, "device").as_text("device"))));
}

Value counts(const CallArguments& call) {
  const Observation& seen = *call.at(0, "observation").as_observation("observation");
  if (!seen.worked) note_trivial_reading();
  Map map;
  CollectiveFilter all;
  all.start_up = all.checkpoint = true;
  if (seen.planned && !seen.planned->is_complete)
    throw UnknownBeforeRun("counts() of a window with a step that has `raises`");
  for (const auto& [key, count] : seen.planned ? seen.planned->counts : count_collectives(select(seen, all), false))
    map.emplace_back(str(key.first, "/", key.second), Value(count));
  return Value::map(std::move(map));
}

Value computations(const CallArguments& call) {
  const Observation& seen = *call.at(0, "observation").as_observation("observation");
  if (seen.planned) throw UnknownBeforeRun("computations()");
  if (!seen.worked) note_trivial_reading();
  Map map;
  for (const auto& [operation, count] : seen.computations) map.emplace_back(operation, Value(count));
  return Value::map(std::move(map));
}

}  // namespace lockstep::run::functions
