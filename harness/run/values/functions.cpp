#include "harness/run/values/functions.hpp"

#include <algorithm>
#include <array>
#include <optional>

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

std::optional<std::vector<Value>> noted_operands(const std::vector<Value>& operands) {
  TracedLayouts* traced = TracedLayouts::active();
  if (!traced) return {};
  bool has_note = false, has_sharded = false;
  for (const Value& value : operands)
    if (const Tensor* tensor = value.get_if<Tensor>()) {
      has_note = has_note || traced->find(*tensor);
      has_sharded = has_sharded || tensor->is_sharded();
    }
  if (!has_note || !has_sharded) return {};
  std::vector<Value> noted = operands;
  for (Value& value : noted)
    if (const Tensor* tensor = value.get_if<Tensor>()) value = Value(traced->as_noted(*tensor));
  return noted;
}

namespace {

// Calls a function in a dry run, on values with notes where noted_operands() gives them.
Value call_on_noted(Value (*function)(const CallArguments&), const CallArguments& call) {
  std::vector<Value> operands = call.positional;
  for (const auto& [key, value] : call.named) operands.push_back(value);
  const auto noted = noted_operands(operands);
  if (!noted) return function(call);
  const std::size_t num_positional = call.positional.size();
  std::vector<Value> positional = *noted;
  positional.resize(num_positional);
  auto named = call.named;
  for (std::size_t i = 0; i < named.size(); ++i) named[i].second = (*noted)[num_positional + i];
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
  } catch (const Error& error) {
    const std::string prefix = str(call.name(), "(...): ");
    throw Error(error.message().starts_with(call.name()) ? error.message() : prefix + error.message(), error.remedy());
  }
}

}  // namespace lockstep::run
