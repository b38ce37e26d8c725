// How a dry run follows the expressions of checks and of `let`: values that only a run knows, and calls of modules.
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "harness/run/trace/dry_run.hpp"
#include "harness/run/values/evaluate.hpp"

namespace lockstep::run {

namespace {

bool calls_module(const scenario::Expr& expr) {
  bool found = false;
  scenario::for_each_node(expr, [&found](const scenario::Expr& node) {
    found = found || (node.kind == scenario::ExprKind::call && node.function == scenario::Function::none);
  });
  return found;
}

// Whether each child is evaluated, whatever the values of the others are.
bool evaluates_all_children(const scenario::Expr& expr) {
  using scenario::ExprKind;
  switch (expr.kind) {
    case ExprKind::attribute:
    case ExprKind::index:
    case ExprKind::slice:
    case ExprKind::unary:
    case ExprKind::list:
    case ExprKind::map:
    case ExprKind::concat:
      return true;
    case ExprKind::binary:
      return expr.op != scenario::Op::and_ && expr.op != scenario::Op::or_;
    case ExprKind::call:
      return expr.function != scenario::Function::none;
    default:
      return false;
  }
}

scenario::ExprPtr name_expr(std::string name) {
  auto made = std::make_unique<scenario::Expr>();
  made->kind = scenario::ExprKind::name;
  made->name = std::move(name);
  return made;
}

// The value that `evaluate_it` returns. Empty after an error; `first` keeps the first one.
template <class Evaluate>
std::optional<Value> value_or_error(std::exception_ptr& first, const Evaluate& evaluate_it) {
  try {
    return evaluate_it();
  } catch (const Unforeseeable&) {
    throw;
  } catch (const Error&) {
    if (!first) first = std::current_exception();
    return std::nullopt;
  }
}

// The value of an expression. A value that only a run knows does not keep the other calls of modules in it from being
// followed: they issue collectives.
std::optional<Value> foresee(const scenario::Expr& expr, const Scope& scope, std::exception_ptr& first) {
  const bool is_split = calls_module(expr);
  if (is_split && expr.kind == scenario::ExprKind::list_of_each) {
    List items;
    bool are_known = true;
    std::optional<Value> made = value_or_error(first, [&] {
      for_each_item(expr, 1, scope, [&](const Scope& inner) {
        std::optional<Value> item = foresee(*expr.children[0], inner, first);
        are_known = are_known && item;
        if (item) items.push_back(std::move(*item));
      });
      return Value::list(std::move(items));
    });
    return are_known ? std::move(made) : std::nullopt;
  }
  if (!is_split || !evaluates_all_children(expr)) return value_or_error(first, [&] { return evaluate(expr, scope); });
  // The same expression of the values of its children.
  scenario::Expr of_values;
  of_values.kind = expr.kind;
  of_values.op = expr.op;
  of_values.function = expr.function;
  of_values.name = expr.name;
  of_values.names = expr.names;
  Locals values{scope.locals, {}};
  bool are_known = true;
  for (std::size_t i = 0; i < expr.children.size(); ++i) {
    const scenario::Expr* child = expr.children[i].get();
    if (!child) {
      of_values.children.push_back(nullptr);
    } else if (i == 0 && expr.kind == scenario::ExprKind::call) {
      of_values.children.push_back(name_expr(child->name));  // of the function
    } else {
      std::optional<Value> value = foresee(*child, scope, first);
      are_known = are_known && value;
      std::string name = str("value ", i);  // no name of a scenario has a space
      if (value) values.names.emplace_back(name, std::move(*value));
      of_values.children.push_back(name_expr(std::move(name)));
    }
  }
  if (!are_known) return std::nullopt;
  return value_or_error(first, [&] { return evaluate(of_values, scope.with(&values)); });
}

}  // namespace

// A check may call a sharded module in its operands, and that call issues collectives.
Value DryRun::leave_out(StepCall& call) {
  std::exception_ptr first;
  for (const scenario::ExprPtr& argument : call.step.arguments)
    if (argument && calls_module(*argument)) foresee(*argument, call.scope, first);
  for (const scenario::NamedExpr& entry : call.step.entries)
    if (calls_module(*entry.value)) foresee(*entry.value, call.scope, first);
  if (first) std::rethrow_exception(first);
  return Value();
}

// A name whose value is unknown stays unbound; the names after it are still bound.
Value DryRun::let(StepCall& call) {
  const NoGrad no_grad;
  Names& names = call.scope.frame->names;
  for (const scenario::NamedExpr& entry : call.step.entries) {
    try {
      if (is_attempt_) {  // an error ends it
        names[entry.name] = evaluate(*entry.value, call.scope);
        continue;
      }
      std::exception_ptr first;
      std::optional<Value> value = foresee(*entry.value, call.scope, first);
      if (!value) std::rethrow_exception(first);
      names[entry.name] = std::move(*value);
    } catch (const Error& error) {
      if (is_attempt_) throw;
      note_unknown(entry.name, call.step.place, error);
      names.erase(entry.name);
    }
  }
  return Value();
}

}  // namespace lockstep::run
