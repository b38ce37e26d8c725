#include "harness/run/values/functions.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "engine/core/resources.hpp"
#include "harness/run/trace/traced_layouts.hpp"

namespace lockstep::run {

namespace {

using Implementation = Value (*)(const CallArguments&);

constexpr Implementation implementations[] = {
#define LOCKSTEP_FUNCTION(id, name, kind, signature, doc) &functions::id,
#include "harness/scenario/functions.def"
#undef LOCKSTEP_FUNCTION
};

}  // namespace

const Value* CallArguments::keyword(std::string_view key) const {
  for (const auto& [given, value] : named)
    if (given == key) return &value;
  return nullptr;
}

const Value* CallArguments::find(std::size_t position, std::string_view key) const {
  if (position < positional.size()) return &positional[position];
  return keyword(key);
}

const Value& CallArguments::at(std::size_t position, std::string_view key) const {
  if (const Value* value = find(position, key)) return *value;
  throw Error(str(name(), " needs `", key, "`"));
}

List CallArguments::rest(std::size_t from) const {
  if (positional.size() == from + 1 && positional[from].is(Value::Kind::list)) return positional[from].as_list(name());
  return List(positional.begin() + static_cast<std::ptrdiff_t>(std::min(from, positional.size())), positional.end());
}

Dims sizes_of(const List& values, std::string_view subject) {
  Dims sizes;
  for (const Value& value : values) sizes.push_back(value.as_int(str("a size of ", subject)));
  return sizes;
}

Dims sizes_at(const CallArguments& call, std::size_t from, const char* key) {
  if (const Value* named = call.keyword(key)) return sizes_of(named->as_list(key), key);
  return sizes_of(call.rest(from), call.name());
}

Dims integers_at(const CallArguments& call, std::size_t position, const char* key) {
  const Value& given = call.at(position, key);
  if (!given.is(Value::Kind::list)) return {given.as_int(key)};
  Dims integers;
  for (const Value& item : given.as_list(key)) integers.push_back(item.as_int(str("an item of ", key)));
  return integers;
}

int dim_at(const CallArguments& call, std::size_t position, const char* key, const Tensor& x, int missing) {
  const Value* given = call.find(position, key);
  const std::int64_t dim = given ? given->as_int(key) : missing;
  return normalize_dim(dim, x.num_dims(), std::string(call.name()).c_str());
}

int dim_at(const CallArguments& call, std::size_t position, const char* key, const Tensor& x) {
  return normalize_dim(call.integer(position, key), x.num_dims(), std::string(call.name()).c_str());
}

int new_dim_at(const CallArguments& call, std::size_t position, const char* key, const Tensor& x, int missing) {
  const Value* given = call.find(position, key);
  const std::int64_t dim = given ? given->as_int(key) : missing;
  return normalize_dim(dim, x.num_dims() + 1, std::string(call.name()).c_str());
}

bool flag_at(const CallArguments& call, const char* key) {
  const Value* given = call.keyword(key);
  return given && given->as_bool(key);
}

double number_at(const CallArguments& call, const char* key, double missing) {
  const Value* given = call.keyword(key);
  return given ? given->as_number(key) : missing;
}

const Tensor* tensor_or_null(const CallArguments& call, std::size_t position, const char* key) {
  const Value* given = call.find(position, key);
  return given && !given->is_none() ? &given->as_tensor(key) : nullptr;
}

std::vector<Tensor> tensors_at(const CallArguments& call, std::size_t position, const char* key) {
  std::vector<Tensor> tensors;
  for (const Value& item : call.at(position, key).as_list(key))
    tensors.push_back(item.as_tensor(str("an item of `", key, "`")));
  if (tensors.empty()) throw Error(str("`", key, "` is an empty list"), "give at least one tensor");
  return tensors;
}

Value noted_result(const char* operation, const std::vector<Tensor>& operands, Tensor result) {
  if (TracedLayouts* traced = TracedLayouts::active(); traced && !result.is_sharded())
    traced->note_result(operation, operands, {result});
  return Value(std::move(result));
}

std::optional<std::vector<Value>> noted_operands(const std::vector<Value>& operands) {
  TracedLayouts* traced = TracedLayouts::active();
  if (!traced) return {};
  bool has_note = false, has_sharded = false;
  for (const Value& value : operands)
    if (const Tensor* tensor = value.get_if<Tensor>()) {
      has_note = has_note || (!tensor->is_sharded() && traced->find(*tensor));
      has_sharded = has_sharded || tensor->is_sharded();
    }
  if (!has_note || !has_sharded) return {};
  std::vector<Value> noted = operands;
  for (Value& value : noted)
    if (const Tensor* tensor = value.get_if<Tensor>()) value = Value(traced->as_noted(*tensor));
  return noted;
}

namespace {

// Calls a function in a dry run, on values with notes where noted_operands() gives them. An argument may be a list of
// tensors.
Value call_on_noted(Value (*function)(const CallArguments&), const CallArguments& call) {
  std::vector<Value> positional = call.positional;
  auto named = call.named;
  std::vector<Value*> arguments;
  arguments.reserve(positional.size() + named.size());
  for (Value& value : positional) arguments.push_back(&value);
  for (auto& [key, value] : named) arguments.push_back(&value);
  std::vector<Value> operands;
  for (const Value* value : arguments) {
    const List items = value->is(Value::Kind::list) ? value->as_list("list") : List{*value};
    operands.insert(operands.end(), items.begin(), items.end());
  }
  const auto noted = noted_operands(operands);
  if (!noted) return function(call);
  auto next = noted->begin();
  for (Value* value : arguments) {
    if (!value->is(Value::Kind::list)) {
      *value = *next++;
      continue;
    }
    const auto end = next + static_cast<std::ptrdiff_t>(value->as_list("list").size());
    *value = Value::list(List(std::exchange(next, end), end));
  }
  return function({call.scope, call.function, positional, named});
}

}  // namespace

Value call_function(const CallArguments& call) {
  LOCKSTEP_CHECK(call.function != scenario::Function::none);
  try {
    const auto function = implementations[static_cast<std::size_t>(call.function) - 1];
    if (TracedLayouts::active()) return call_on_noted(function, call);
    return function(call);
  } catch (const UnboundName&) {
    throw;
  } catch (const CollectiveError&) {
    throw;
  } catch (const UnsupportedError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& error) {
    const std::string prefix = str(call.name(), "(...): ");
    throw Error(error.message().starts_with(call.name()) ? error.message() : prefix + error.message(), error.remedy());
  }
}

}  // namespace lockstep::run
