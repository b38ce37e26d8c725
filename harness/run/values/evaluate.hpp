// Evaluating expressions: walks the tree that harness/scenario parsed, left to right.
//
//   Value loss = evaluate(*step.argument("loss"), Scope{frame});
//
// Errors are lockstep::Error; a name that is not bound is UnboundName. The step that evaluates adds its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/run/values/scope.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::run {

Value evaluate(const scenario::Expr& expr, const Scope& scope);
// A condition: a boolean and nothing else.
bool evaluate_condition(const scenario::Expr& expr, const Scope& scope);

// The value of a name, innermost first; null when it is not bound.
const Value* find_name(std::string_view name, const Scope& scope);

// Of `let` and `forward`: each value under its name, in order.
void bind_each(const std::vector<scenario::NamedExpr>& entries, const Scope& scope);

// operators.cpp
Value apply_unary(scenario::Op op, const Value& x);
Value apply_binary(scenario::Op op, const Value& a, const Value& b);  // all but and_, or_
bool is_less(const Value& a, const Value& b);                         // numbers or texts
Value index_into(const Value& of, const Value& at);
Value slice_of(const Value& of, const Value& from, const Value& to);

// attributes.cpp
Value attribute_of(const Value& of, const std::string& name);
// A parameter, buffer, child or method of a module by its local name; none of these: null Value and false.
bool find_member(const nn::ModulePtr& module, const std::string& name, Value& found);

// Calls a module or one of its methods with values.
Value call_module(const nn::ModulePtr& module, const std::string& method, const std::vector<Value>& positional,
                  const std::vector<std::pair<std::string, Value>>& named);

}  // namespace lockstep::run
