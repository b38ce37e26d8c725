// Values that are known before a case runs, and the names that its steps bind. Used by foresight.cpp.
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

// Names of a case that hold before launch. Without `all_ranks`: there is no peer to make a mesh with.
Session session_before_launch(const scenario::Case& one, int rank, int world_size);

// The value of an expression of parameters, plain values, plain functions and modules; nothing where it hangs on a run:
// on tensors, on what an API does, or on a name that is not bound in the scope.
std::optional<Value> known_value(const Expr& expr, const Scope& scope);
// The module on the meta device; nothing where its arguments are not known.
std::optional<Value> built_model(const Expr& build, const Scope& scope);
std::optional<Value> copied(std::optional<Value> value);  // a module of its own

std::vector<std::string> literal_names(const Expr* expr);            // of a loop; null: none
std::vector<std::string> names_bound_by(const Step& step);           // by itself, not by its blocks
void collect_bound(const Step& step, std::set<std::string>& names);  // and by its blocks
std::set<std::string> names_bound_in_hooks(const Steps& steps);
// A check, or a step that must raise; in its blocks and routine too.
bool contains_check(const Step& step);

}  // namespace lockstep::run::foresight
