#include "harness/run/values/evaluate.hpp"

#include <utility>

#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/plan_conditions.hpp"
#include "harness/run/values/functions.hpp"
#include "harness/run/values/scenario_module.hpp"
#include "harness/scenario/call_arguments.hpp"

namespace lockstep::run {

using scenario::Expr;
using scenario::ExprKind;
using scenario::Op;

const Value* find_name(std::string_view name, const Scope& scope) {
  if (scope.locals)
    if (const Value* value = scope.locals->find(name)) return value;
  const std::string key(name);
  const Frame& frame = *scope.frame;
  if (const auto at = frame.names.find(key); at != frame.names.end()) return &at->second;
  const Session& session = *frame.session;
  if (!frame.routine)
    if (const auto at = session.parameters.find(key); at != session.parameters.end()) {
      if (session.names_read) session.names_read->insert(key);
      return &at->second;
    }
  if (const auto at = session.variables.find(key); at != session.variables.end()) {
    if (session.names_read && key == "launch") session.names_read->emplace(launch_of_case);
    return &at->second;
  }
  return nullptr;
}

void bind_each(const std::vector<scenario::NamedExpr>& entries, const Scope& scope) {
  for (const scenario::NamedExpr& entry : entries) {
    const TrivialReadings readings;
    Value value = evaluate(*entry.value, scope);
    scope.frame->bind(entry.name, std::move(value), readings.any());
  }
}

namespace {

// Order: inputs of the evaluated method and comprehension targets, members of the module, the frame, the session.
bool lookup(const std::string& name, const Scope& scope, Value& found) {
  if (scope.locals)
    if (const Value* value = scope.locals->find(name)) {
      found = *value;
      return true;
    }
  if (scope.self && scope.self->find_own(name, found)) return true;
  if (const Value* value = find_name(name, scope)) {
    found = *value;
    if (!scope.frame->from_trivial_reading.empty() && scope.frame->from_trivial_reading.contains(name))
      note_trivial_reading();
    return true;
  }
  return false;
}

Value name_value(const Expr& expr, const Scope& scope) {
  Value found;
  if (lookup(expr.name, scope, found)) return found;
  throw UnboundName(str("`", expr.name, "` has no value here: the step that would have bound it did not run"));
}

// Binds the targets of a comprehension to one item; several targets unpack a list.
void bind_targets(const std::vector<std::string>& targets, const Value& item,
                  std::vector<std::pair<std::string, Value>>& names) {
  if (targets.size() == 1) {
    names[0].second = item;
    return;
  }
  const List& values = item.as_list("an item for several names");
  if (values.size() != targets.size())
    throw Error(str("an item of ", values.size(), " values cannot be unpacked into ", targets.size(), " names"));
  for (std::size_t i = 0; i < values.size(); ++i) names[i].second = values[i];
}

}  // namespace

void for_each_item(const Expr& expr, std::size_t items_at, const Scope& scope,
                   const std::function<void(const Scope&)>& visit) {
  const Value items = evaluate(*expr.children[items_at], scope);
  const Expr* condition = items_at + 1 < expr.children.size() ? expr.children[items_at + 1].get() : nullptr;
  Locals locals{scope.locals, {}};
  for (const std::string& target : expr.names) locals.names.emplace_back(target, Value());
  const Scope inner = scope.with(&locals);
  for (const Value& item : items.as_list("the range of a comprehension")) {
    scenario::Budget::ask_time();
    bind_targets(expr.names, item, locals.names);
    if (!condition || evaluate_condition(*condition, inner)) visit(inner);
  }
}

namespace {

Key key_of(const Value& value) {
  if (const std::int64_t* integer = value.get_if<std::int64_t>()) return Key(*integer);
  return Key(value.as_text("the key of a map"));
}

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

Arguments evaluate_arguments(const Expr& call, const Scope& scope) {
  Arguments arguments;
  arguments.positional.reserve(call.num_positional());
  for (std::size_t i = 0; i < call.num_positional(); ++i)
    arguments.positional.push_back(evaluate(call.positional(i), scope));
  for (std::size_t i = 0; i < call.names.size(); ++i)
    arguments.named.emplace_back(call.names[i], evaluate(call.keyword(i), scope));
  return arguments;
}

bool callable(const Value& value) { return value.is(Value::Kind::module) || value.is(Value::Kind::method); }

Value call_value(const Value& callee, const Arguments& arguments, const std::string& shown) {
  if (const nn::ModulePtr* module = callee.get_if<nn::ModulePtr>())
    return call_module(*module, "forward", arguments.positional, arguments.named);
  if (const BoundMethod* method = callee.get_if<BoundMethod>())
    return call_module(method->module, method->name, arguments.positional, arguments.named);
  throw Error(str("`", shown, "` is ", describe(callee), " and cannot be called"));
}

Value call(const Expr& expr, const Scope& scope) {
  const Expr& callee = *expr.children[0];
  if (callee.kind != ExprKind::name) {
    const Value target = evaluate(callee, scope);
    return call_value(target, evaluate_arguments(expr, scope), to_text(callee));
  }
  Value target;
  const bool bound = lookup(callee.name, scope, target);
  if (bound && callable(target)) return call_value(target, evaluate_arguments(expr, scope), callee.name);
  if (scope.build_options && is_buildable(callee.name, scope)) {
    const Arguments arguments = evaluate_arguments(expr, scope);
    return Value(build_module(callee.name, arguments.positional, arguments.named, scope));
  }
  if (expr.function != scenario::Function::none) {
    // The check of the file skips bound names, because only a run knows which of them are modules.
    if (bound)
      scenario::check_function_arguments(expr, scenario::spec_of(expr.function),
                                         [](const Expr&, const std::string& message) { throw Error(message); });
    const Arguments arguments = evaluate_arguments(expr, scope);
    return call_function(CallArguments{scope, expr.function, arguments.positional, arguments.named});
  }
  if (bound) throw Error(str("`", callee.name, "` is ", describe(target), " and cannot be called"));
  throw UnboundName(str("`", callee.name, "` has no value here: the step that would have bound it did not run"));
}

Value concat(const Expr& expr, const Scope& scope) {
  if (expr.children.size() == 1) {
    Value only = evaluate(*expr.children[0], scope);
    if (only.is(Value::Kind::list)) return only;
    return Value(to_text(only));
  }
  std::string text;
  for (const auto& child : expr.children) {
    const std::string piece = to_text(evaluate(*child, scope));
    scenario::Budget::ask(static_cast<std::int64_t>(text.size() + piece.size()),
                          [&] { return str("a text of ", text.size() + piece.size(), " characters"); });
    text += piece;
  }
  return Value(std::move(text));
}

// `and` and `or` evaluate the right side only where the left side does not decide.
Value binary(const Expr& expr, const Scope& scope) {
  if (expr.op == Op::and_ || expr.op == Op::or_) {
    const bool left = evaluate_condition(*expr.children[0], scope);
    if (left == (expr.op == Op::or_)) return Value(left);
    return Value(evaluate_condition(*expr.children[1], scope));
  }
  const Value left = evaluate(*expr.children[0], scope), right = evaluate(*expr.children[1], scope);
  if (!left.is(Value::Kind::tensor) || !right.is(Value::Kind::tensor)) return apply_binary(expr.op, left, right);
  if (const auto noted = noted_operands({left, right})) return apply_binary(expr.op, (*noted)[0], (*noted)[1]);
  return apply_binary(expr.op, left, right);
}

Value slice(const Expr& expr, const Scope& scope) {
  const Value of = evaluate(*expr.children[0], scope);
  const Value from = expr.children[1] ? evaluate(*expr.children[1], scope) : Value();
  return slice_of(of, from, expr.children[2] ? evaluate(*expr.children[2], scope) : Value());
}

Value list(const Expr& expr, const Scope& scope) {
  List items;
  items.reserve(expr.children.size());
  for (const auto& child : expr.children) items.push_back(evaluate(*child, scope));
  return Value::list(std::move(items));
}

Value list_of_each(const Expr& expr, const Scope& scope) {
  List items;
  for_each_item(expr, 1, scope, [&](const Scope& inner) { items.push_back(evaluate(*expr.children[0], inner)); });
  return Value::list(std::move(items));
}

// The key is evaluated before the value.
void add_entry(Map& map, const Expr& key_expr, const Expr& value_expr, const Scope& scope) {
  Key key = key_of(evaluate(key_expr, scope));
  set_entry(map, std::move(key), evaluate(value_expr, scope));
}

Value map(const Expr& expr, const Scope& scope) {
  Map entries;
  for (std::size_t i = 0; i + 1 < expr.children.size(); i += 2)
    add_entry(entries, *expr.children[i], *expr.children[i + 1], scope);
  return Value::map(std::move(entries));
}

Value map_of_each(const Expr& expr, const Scope& scope) {
  Map entries;
  for_each_item(expr, 2, scope,
                [&](const Scope& inner) { add_entry(entries, *expr.children[0], *expr.children[1], inner); });
  return Value::map(std::move(entries));
}

}  // namespace

bool evaluate_condition(const Expr& expr, const Scope& scope) { return evaluate(expr, scope).as_bool("a condition"); }

Value evaluate(const Expr& expr, const Scope& scope) {
  switch (expr.kind) {
    case ExprKind::literal:
      return from_literal(expr.value);
    case ExprKind::name:
      return name_value(expr, scope);
    case ExprKind::attribute:
      return attribute_of(evaluate(*expr.children[0], scope), expr.name);
    case ExprKind::index: {
      const Value of = evaluate(*expr.children[0], scope), at = evaluate(*expr.children[1], scope);
      if (!of.is_tensor() || !at.is_tensor()) return index_into(of, at);
      const auto noted = noted_operands({of, at});
      return noted ? index_into((*noted)[0], (*noted)[1]) : index_into(of, at);
    }
    case ExprKind::slice:
      return slice(expr, scope);
    case ExprKind::call:
      return call(expr, scope);
    case ExprKind::unary:
      return apply_unary(expr.op, evaluate(*expr.children[0], scope));
    case ExprKind::binary:
      return binary(expr, scope);
    case ExprKind::conditional:
      return evaluate(*expr.children[evaluate_condition(*expr.children[1], scope) ? 0 : 2], scope);
    case ExprKind::list:
      return list(expr, scope);
    case ExprKind::map:
      return map(expr, scope);
    case ExprKind::list_of_each:
      return list_of_each(expr, scope);
    case ExprKind::map_of_each:
      return map_of_each(expr, scope);
    case ExprKind::concat:
      return concat(expr, scope);
  }
  throw InternalError("an expression of unknown kind");
}

Value call_module(const nn::ModulePtr& module, const std::string& method, const std::vector<Value>& positional,
                  const std::vector<std::pair<std::string, Value>>& named) {
  nn::Inputs inputs;
  inputs.positional.reserve(positional.size());
  for (const Value& value : positional) inputs.positional.push_back(to_nn(value));
  for (const auto& [name, value] : named) inputs.named.emplace_back(name, to_nn(value));
  return from_nn(module->call(std::move(inputs), method));
}

}  // namespace lockstep::run
