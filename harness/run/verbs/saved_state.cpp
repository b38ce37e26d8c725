// save_checkpoint, load_checkpoint.
#include <algorithm>
#include <cmath>

#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/rank_budget.hpp"
#include "harness/run/values/json_values.hpp"
#include "harness/run/verbs/folders.hpp"

namespace lockstep::run {

namespace {

constexpr std::int64_t most_elements = 10'000;  // of a plain value

bool is_object(const Value& value) {
  return value.is(Value::Kind::module) || value.is(Value::Kind::optimizer) || value.is(Value::Kind::scaler) ||
         value.is(Value::Kind::tensor);
}

bool holds_objects(const Value& value) {
  if (value.is(Value::Kind::map)) {
    const Map& map = value.as_map("state");
    return std::any_of(map.begin(), map.end(), [](const auto& entry) { return holds_objects(entry.second); });
  }
  if (value.is(Value::Kind::list)) {
    const List& list = value.as_list("state");
    return std::any_of(list.begin(), list.end(), [](const Value& item) { return holds_objects(item); });
  }
  return is_object(value);
}

// JSON would turn numbers that are not finite, and element types, into texts.
void check_has_json(const std::string& name, const Value& value) {
  if (value.is(Value::Kind::map))
    for (const auto& [key, item] : value.as_map(name)) check_has_json(name, item);
  if (value.is(Value::Kind::list))
    for (const Value& item : value.as_list(name)) check_has_json(name, item);
  const double* number = value.get_if<double>();
  if ((number && !std::isfinite(*number)) || value.is(Value::Kind::dtype))
    throw Error(str("`", name, "` holds ", to_text(value), ", which a checkpoint cannot keep"),
                "save a tensor of it, or a text");
}

// Adds the parts of a value. Maps and lists of objects become a part per item, NAME.KEY; others are plain values.
void add_parts(state::State& parts, const std::string& name, const Value& value) {
  if (const nn::ModulePtr* module = value.get_if<nn::ModulePtr>())
    parts.push_back({name, *module});
  else if (const OptimizerPtr* optimizer = value.get_if<OptimizerPtr>())
    parts.push_back({name, optimizer->get()});
  else if (const ScalerPtr* scaler = value.get_if<ScalerPtr>())
    parts.push_back({name, scaler->get()});
  else if (value.is(Value::Kind::tensor))
    parts.push_back({name, value.as_tensor(name)});
  else if (!holds_objects(value))
    parts.push_back({name, state::PlainValue{to_literal(value, most_elements).json()}});
  else if (value.is(Value::Kind::map))
    for (const auto& [key, item] : value.as_map(name)) add_parts(parts, name + "." + key.text, item);
  else
    for (std::size_t i = 0; i < value.as_list(name).size(); ++i)
      add_parts(parts, str(name, ".", i), value.as_list(name)[i]);
}

state::State state_of(const StepCall& call, const Value& state) {
  state::State parts;
  for (const auto& [key, value] : state.as_map("`state`")) {
    if (key.text.empty() || key.text.find('.') != std::string::npos)
      throw Error(str("`", key.text, "` of `state`: a name has characters other than `.`"), "choose another name");
    add_parts(parts, key.text, value);
  }
  if (call.boolean("random_state")) parts.push_back({"random_state", state::RandomState{}});
  if (parts.empty()) throw Error("the state is empty", "give a map of models, optimizers, scalers and values");
  return parts;
}

// A disk that fails at one kind of operation. A thread of an asynchronous save uses it after the step, so that one
// object per kind lives as long as the program.
class FailingDisk : public state::FileSystem {
 public:
  explicit FailingDisk(std::string operation) : operation_(std::move(operation)) {}
  static FailingDisk& at(const std::string& operation) {
    static FailingDisk create("create"), write("write"), flush("flush");
    return operation == "create" ? create : operation == "write" ? write : flush;
  }

  int create(const std::string& path) override {
    fail("create", path);
    return FileSystem::create(path);
  }
  void write(int file, const std::string& path, const void* bytes, std::size_t size) override {
    fail("write", path);
    FileSystem::write(file, path, bytes, size);
  }
  void sync(int file, const std::string& path) override {
    fail("flush", path);
    FileSystem::sync(file, path);
  }

 private:
  void fail(const char* operation, const std::string& path) const {
    if (operation_ == operation)
      throw Error(str("cannot ", operation, " `", path, "`: `fail_at` of this step lets the disk fail"),
                  "leave out `fail_at`");
  }
  const std::string operation_;
};

}  // namespace

namespace verbs {

Value save_checkpoint(StepCall& call) {
  const std::string shown = call.text("folder");
  state::SaveOptions options;
  options.overwrite = call.boolean("overwrite");
  options.async = call.boolean("async");
  options.shown = shown;
  if (call.has("fail_at") && call.in.session().rank == call.integer("fail_on"))
    options.files = &FailingDisk::at(call.text("fail_at"));
  options.before_write = [&](const std::string& path, std::uint64_t bytes) {
    call.live().budget().write(path, shown, static_cast<std::size_t>(bytes));
  };
  const std::string folder = resolve_path(shown, folders_of(call), true);
  const Value state = call.value("state");
  const state::State parts = state_of(call, state);
  for (const auto& [key, value] : state.as_map("`state`")) check_has_json(key.text, value);
  const state::SaveHandle saving = state::save(parts, folder, options);
  if (!options.async) return Value();
  Handle handle;
  handle.finish = [saving] { saving.wait(); };
  return Value(std::move(handle));
}

Value load_checkpoint(StepCall& call) {
  const std::string shown = call.text("folder");
  state::LoadOptions options;
  options.partial = call.boolean("partial");
  options.shown = shown;
  options.check_value = [](const std::string& json) { parse_json(json); };
  state::finish_saves();  // a path under the folder of scenarios is looked for before the load begins
  const Value state = call.value("state");
  for (const auto& [key, value] : state.as_map("`state`")) options.names.push_back(key.text);
  const state::LoadReport report =
      state::load(state_of(call, state), resolve_path(shown, folders_of(call), false), options);
  Map values, result;
  for (const auto& [key, json] : report.values) values.emplace_back(key, parse_json(json));
  result.emplace_back("values", Value::map(std::move(values)));
  result.emplace_back("missing", Value::texts(report.missing));
  result.emplace_back("unexpected", Value::texts(report.unexpected));
  result.emplace_back("bytes_needed", Value(static_cast<std::int64_t>(report.bytes_needed)));
  result.emplace_back("bytes_read", Value(static_cast<std::int64_t>(report.bytes_read)));
  return Value::map(std::move(result));
}

}  // namespace verbs

}  // namespace lockstep::run
