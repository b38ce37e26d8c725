// The functions of the language, one C++ function a row of harness/scenario/functions.def: a row without its function
// does not link.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/run/values/scope.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

struct CallArguments {
  const Scope& scope;
  scenario::Function function = scenario::Function::none;
  const std::vector<Value>& positional;
  const std::vector<std::pair<std::string, Value>>& named;

  std::string_view name() const { return scenario::name_of(function); }
  // By position or by name; null when it is missing.
  const Value* find(std::size_t position, std::string_view key) const;
  const Value* keyword(std::string_view key) const;
  // The same; throws Error naming the function when it is missing.
  const Value& at(std::size_t position, std::string_view key) const;
  std::int64_t integer(std::size_t position, std::string_view key) const { return at(position, key).as_int(key); }
  const Tensor& tensor(std::size_t position, std::string_view key) const { return at(position, key).as_tensor(key); }
  // All from `from` on, one by one or as one list.
  List rest(std::size_t from) const;
};

Value call_function(const CallArguments& call);

// Sizes given one by one or as a list.
Dims sizes_of(const List& values, std::string_view what);

namespace functions {
#define LOCKSTEP_FUNCTION(id, name, kind, signature, doc) Value id(const CallArguments& call);
#include "harness/scenario/functions.def"
#undef LOCKSTEP_FUNCTION
}  // namespace functions

}  // namespace lockstep::run
