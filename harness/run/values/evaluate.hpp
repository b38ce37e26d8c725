// Evaluates parsed expressions (harness/scenario/expression.hpp), from left to right.
//
//   Value loss = evaluate(*step.argument("loss"), Scope{frame});
//
// Throws Error, and UnboundName for a name without a value. The evaluating step adds its place to the message.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/run/values/scope.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::run {

Value evaluate(const scenario::Expr& expr, const Scope& scope);
// Throws Error for a value that is no boolean.
bool evaluate_condition(const scenario::Expr& expr, const Scope& scope);

// The value of a name; inner scopes come first. Null: not bound.
const Value* find_name(std::string_view name, const Scope& scope);

// For `let` and `forward`: evaluates the entries in order and binds each value to its name in the frame.
void bind_each(const std::vector<scenario::NamedExpr>& entries, const Scope& scope);

// For comprehensions: calls `visit` with the scope of each item that the condition accepts. `items_at`: the child of
// `expr` that gives the items.
void for_each_item(const scenario::Expr& expr, std::size_t items_at, const Scope& scope,
                   const std::function<void(const Scope&)>& visit);

// operators.cpp
Value apply_unary(scenario::Op op, const Value& x);
Value apply_binary(scenario::Op op, const Value& a, const Value& b);  // not for and_ and or_
bool is_less(const Value& a, const Value& b);                         // of numbers or texts; else throws Error
Value index_into(const Value& of, const Value& at);
Value slice_of(const Value& of, const Value& from, const Value& to);

// attributes.cpp
Value attribute_of(const Value& of, const std::string& name);
// Finds a child, parameter, buffer or method of a module by its local name. False: none has this name.
bool find_member(const nn::ModulePtr& module, const std::string& name, Value& found);

// Calls a method of a module (`forward` for the module itself).
Value call_module(const nn::ModulePtr& module, const std::string& method, const std::vector<Value>& positional,
                  const std::vector<std::pair<std::string, Value>>& named);

}  // namespace lockstep::run
