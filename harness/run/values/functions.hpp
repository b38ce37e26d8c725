// The functions of the language: one C++ function per row of harness/scenario/functions.def. A row without a function
// is a link error.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/run/values/scope.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

// The evaluated arguments of one call.
struct CallArguments {
  const Scope& scope;
  scenario::Function function = scenario::Function::none;
  const std::vector<Value>& positional;
  const std::vector<std::pair<std::string, Value>>& named;

  std::string_view name() const { return scenario::name_of(function); }
  // The argument at a position or with a name; null: missing.
  const Value* find(std::size_t position, std::string_view key) const;
  const Value* keyword(std::string_view key) const;
  // The same; throws Error if it is missing.
  const Value& at(std::size_t position, std::string_view key) const;
  std::int64_t integer(std::size_t position, std::string_view key) const { return at(position, key).as_int(key); }
  const Tensor& tensor(std::size_t position, std::string_view key) const { return at(position, key).as_tensor(key); }
  // The arguments from position `from` on, given one by one or as one list.
  List rest(std::size_t from) const;
};

// Throws Error with the name of the function in front.
Value call_function(const CallArguments& call);

// In a dry run, the operands of an operation on a value with a noted layout and a sharded tensor: all as values with
// notes (trace/traced_layouts.hpp). Empty: the operands stay as they are.
std::optional<std::vector<Value>> noted_operands(const std::vector<Value>& operands);

// The result of an operation of which the dry run does not hear from autograd, or not of all operands: with a note of
// its layout, if an operand has one. `result` itself in a run.
Value noted_result(const char* operation, const std::vector<Tensor>& operands, Tensor result);

// ---- arguments ----
// Integers as sizes. Throws Error for other kinds.
Dims sizes_of(const List& values, std::string_view subject);
// Integers one by one from a position on, or as one list there or by name.
Dims sizes_at(const CallArguments& call, std::size_t from, const char* key);
// An integer or a list of integers.
Dims integers_at(const CallArguments& call, std::size_t position, const char* key);
// A dim of x, from 0 on. Throws Error if x has no such dim.
int dim_at(const CallArguments& call, std::size_t position, const char* key, const Tensor& x, int missing);
int dim_at(const CallArguments& call, std::size_t position, const char* key, const Tensor& x);
// The position of a new dim of x.
int new_dim_at(const CallArguments& call, std::size_t position, const char* key, const Tensor& x, int missing);
// False if it is missing.
bool flag_at(const CallArguments& call, const char* key);
double number_at(const CallArguments& call, const char* key, double missing);
// Null if it is missing or none.
const Tensor* tensor_or_null(const CallArguments& call, std::size_t position, const char* key);
std::vector<Tensor> tensors_at(const CallArguments& call, std::size_t position, const char* key);

namespace functions {
#define LOCKSTEP_FUNCTION(id, name, kind, signature, doc) Value id(const CallArguments& call);
#include "harness/scenario/functions.def"
#undef LOCKSTEP_FUNCTION
}  // namespace functions

}  // namespace lockstep::run
