// Values that are known before a case runs, and the names that its steps bind. For foresight.cpp only.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/run/values/scope.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::run::foresight {

using scenario::Expr;
using scenario::ExprKind;
using scenario::Step;
using scenario::Steps;
using scenario::Verb;

// The session of a case with the names that are known before launch. `all_ranks` is not: a mesh needs peers.
Session session_before_launch(const scenario::Case& one, int rank, int world_size);

// The value of an expression of parameters, plain values, plain functions and modules. Empty if only a run knows it: it
// depends on tensors, on the effect of an API, or on a name that is not bound in the scope.
std::optional<Value> known_value(const Expr& expr, const Scope& scope);
// The module, on the meta device. Empty if its arguments are unknown.
std::optional<Value> built_model(const Expr& build, const Scope& scope);
std::optional<Value> copied(std::optional<Value> value);  // deep, for a module

std::vector<std::string> literal_names(const Expr* expr);            // in an argument of type names
std::vector<std::string> names_bound_by(const Step& step);           // not by the steps in its blocks
void collect_bound(const Step& step, std::set<std::string>& names);  // also by the steps in its blocks
std::set<std::string> names_bound_in_hooks(const Steps& steps);
// Whether the step, or a step in its blocks or its routine, is a check or must raise.
bool contains_check(const Step& step);

}  // namespace lockstep::run::foresight
