// Checks across the steps of a file: names are bound before use, calls are known, and checks can gather evidence.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/core/text.hpp"
#include "harness/scenario/call_arguments.hpp"
#include "harness/scenario/document_parser.hpp"
#include "harness/scenario/model_cycles.hpp"
#include "harness/scenario/scope.hpp"

namespace lockstep::scenario {

namespace {

class Checker {
 public:
  Checker(const std::vector<ModelDefinition>& models, Diagnostics& diagnostics)
      : models_(models), diagnostics_(diagnostics) {}

  void set_matrix(const std::vector<MatrixName>& names) { matrix_ = &names; }

  void check_steps(const Steps& list, Scope& scope) {
    for (const Step& step : list) check_step(step, scope);
  }

  void check_expression(const Expr& expr, const Scope& scope, const std::string& file, bool builds = false) {
    file_ = &file;
    check(expr, scope, builds);
  }

  // Checks an expression that is evaluated before launch: it may contain only constants and plain functions.
  void check_constant(const Expr& expr, const Scope& scope, const std::string& file) {
    for_each_node(expr, [&](const Expr& node) {
      if (node.kind != ExprKind::call) return;
      const bool plain = node.function != Function::none && spec_of(node.function).kind == FunctionKind::plain;
      if (!plain) {
        diagnostics_.error(
            Place{file, node.line, node.column},
            str("`", to_text(*node.children[0]), "` cannot be called before launch; only plain functions can"));
      }
    });
    Scope before = scope;
    before.known = scope.fixed;
    check_expression(expr, before, file);
  }

  void check_models(const std::vector<std::string>& constants) {
    for (const ModelDefinition& model : models_) check_model(model, constants);
    check_cycles(models_, diagnostics_);
  }

 private:
  void error(const Expr& expr, std::string message) {
    diagnostics_.error(Place{*file_, expr.line, expr.column}, std::move(message));
  }

  void check_step(const Step& step, Scope& scope) {
    file_ = &step.place.file;
    const bool binds = step.verb == Verb::let || step.verb == Verb::forward;
    may_have_effects_ = false;
    if (step.when != nullptr) check(*step.when, scope, false);
    const VerbSpec& spec = spec_of(step.verb);
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      if (step.arguments[i] != nullptr && step.given[i]) check_argument(*step.arguments[i], spec.arguments[i], scope);
    }
    may_have_effects_ = binds;
    for (const NamedExpr& entry : step.entries) {
      const RoutineParameter* parameter = step.routine == nullptr ? nullptr : step.routine->parameter(entry.name);
      ArgumentSpec typed;
      typed.name = entry.name;
      typed.type = parameter == nullptr ? ArgType::any : argument_type_of(parameter->type);
      if (entry.value != nullptr) check_argument(*entry.value, typed, scope);
      if (!binds) continue;
      if (binds_constant(step, entry, scope)) scope.constants.insert(entry.name);
      bind_name(entry.name, entry.place, scope, diagnostics_);
    }
    may_have_effects_ = false;
    if (step.raises) {
      check(*step.raises->message, scope, false);
      if (step.raises->when != nullptr) check(*step.raises->when, scope, false);
      if (step.raises->within_ms != nullptr) check(*step.raises->within_ms, scope, false);
    }
    if (step.verb == Verb::expect && step.arguments[0] != nullptr) check_evidence(*step.arguments[0], scope);
    if (step.verb == Verb::expect_equal || step.verb == Verb::expect_different) check_compared(step, 2, scope);
    if (step.verb == Verb::expect_across) check_compared(step, 1, scope);
    may_have_effects_ = true;
    const std::set<std::string> around = scope.of_loops;
    std::set<std::string> of_this_loop;
    for (const std::string& name : loop_names(step)) {
      if (!of_this_loop.insert(name).second) diagnostics_.error(step.place, str("the loop binds `", name, "` twice"));
      bind_name(name, step.place, scope, diagnostics_);
      scope.of_loops.insert(name);
    }
    const bool was_in_block = std::exchange(in_block_, true);
    if (step.verb == Verb::hook) {
      check_hook(step, scope);
    } else {
      check_steps(step.steps, scope);
      check_steps(step.otherwise, scope);
      for (const Branch& branch : step.among) check_steps(branch.steps, scope);
    }
    in_block_ = was_in_block;
    scope.of_loops = around;
    file_ = &step.place.file;
    if (!step.as.empty()) bind_name(step.as, step.place, scope, diagnostics_);
    for (const auto& [its, mine] : step.as_names) bind_name(mine, step.place, scope, diagnostics_);
  }

  // The predefined names of a hook are known within it only. Names that its steps bind are known in all later steps.
  void check_hook(const Step& step, Scope& scope) {
    Scope inner = scope;
    inner.in_hook = true;
    inner.barred.insert(scope.of_loops.begin(), scope.of_loops.end());
    for (std::string_view name : hook_names()) {
      inner.known.emplace(name);
      inner.constants.erase(std::string(name));
    }
    check_steps(step.steps, inner);
    std::map<std::string, Place> bound;
    collect_bound_names(step.steps, bound);
    for (const auto& [name, place] : bound) scope.known.insert(name);
  }

  void check_argument(const Expr& value, const ArgumentSpec& spec, const Scope& scope) {
    switch (spec.type) {
      case ArgType::path:
      case ArgType::paths:
        check_path(value, scope);
        break;
      case ArgType::name:
      case ArgType::names:
        // The names of `drop` must be known. The names of loops are bound by the loop.
        if (spec.name == "names") {
          for_each_node(value, [&](const Expr& node) {
            if (node.kind != ExprKind::literal || !node.value.is_text()) return;
            const std::string& name = node.value.as_text();
            if (scope.fixed.contains(name)) {
              error(node, str("`", name, "` is known before launch and cannot be dropped"));
            } else if (!scope.is_known(name)) {
              report_unknown_name(name, Place{*file_, node.line, node.column}, scope, diagnostics_);
            }
          });
        }
        break;
      default:
        check(value, scope, spec.type == ArgType::module);
    }
  }

  // The name at the start of a path must be bound. The components after it are looked up when the step runs.
  void check_path(const Expr& value, const Scope& scope) {
    if (value.kind == ExprKind::list) {
      for (const ExprPtr& item : value.children) check_path(*item, scope);
      return;
    }
    const Expr* first = &value;
    if (value.kind == ExprKind::concat) {
      for (const ExprPtr& piece : value.children) {
        if (piece->kind != ExprKind::literal) check(*piece, scope, false);
      }
      first = value.children.front().get();
    }
    if (first->kind != ExprKind::literal || !first->value.is_text()) return;
    const std::string& text = first->value.as_text();
    const std::size_t end = text.find('.');
    // The name at the start of `mo${x}.a` is known only when the step runs.
    if (end == std::string::npos && value.kind == ExprKind::concat) return;
    const std::string name = text.substr(0, end);
    if (name.find_first_of("*?[") != std::string::npos) {
      error(*first, str("a path must begin with a name; `", name, "` is a pattern"));
    } else if (!scope.is_known(name)) {
      report_unknown_name(name, Place{*file_, first->line, first->column}, scope, diagnostics_);
    }
  }

  void check(const Expr& expr, const Scope& scope, bool builds) {
    switch (expr.kind) {
      case ExprKind::name: {
        if (scope.is_known(expr.name)) return;
        if (find_function(expr.name) != nullptr) {
          error(expr, str("`", expr.name, "` is a function; call it: `", expr.name, "(...)`"));
        } else if (is_model(expr.name)) {
          error(expr, str("`", expr.name, "` builds a module; call it: `", expr.name, "(...)`"));
        } else {
          report_unknown_name(expr.name, Place{*file_, expr.line, expr.column}, scope, diagnostics_);
        }
        return;
      }
      case ExprKind::call:
        check_call(expr, scope, builds);
        return;
      case ExprKind::attribute:
        check_matrix_entry(expr);
        break;
      case ExprKind::binary:
        check_matrix_comparison(expr, scope);
        break;
      case ExprKind::list_of_each:
      case ExprKind::map_of_each: {
        const std::size_t list = expr.kind == ExprKind::list_of_each ? 1 : 2;
        check(*expr.children[list], scope, false);
        Scope inner = scope;
        for (const std::string& name : expr.names) {
          inner.known.insert(name);
          inner.fixed.erase(name);
        }
        for (std::size_t i = 0; i < expr.children.size(); ++i) {
          if (i != list && expr.children[i] != nullptr) check(*expr.children[i], inner, builds);
        }
        return;
      }
      default:
        break;
    }
    for (const ExprPtr& child : expr.children) {
      if (child != nullptr) check(*child, scope, builds);
    }
  }

  void check_call(const Expr& expr, const Scope& scope, bool builds) {
    const Expr& callee = *expr.children[0];
    if (callee.kind != ExprKind::name) {
      check(callee, scope, false);
    } else if (builds && is_model(callee.name)) {
      check_model_arguments(expr, callee.name, models_, report_error_);
    } else if (scope.is_known(callee.name)) {
      check_effect(expr, str(", or rename `", callee.name, "` if it is a module"));
    } else {
      if (expr.function != Function::none) {
        check_effect(expr);
        check_function_arguments(expr, spec_of(expr.function), report_error_);
      } else if (is_model(callee.name)) {
        error(callee, str("`", callee.name, "` builds a module, which only `model` and `children` do"));
      } else {
        report_unknown_call(callee, scope, builds);
      }
    }
    for (std::size_t i = 1; i < expr.children.size(); ++i) check(*expr.children[i], scope, builds);
  }

  // Also of a bound name: unless a module is bound to it, the run calls the function.
  void check_effect(const Expr& call, std::string_view other_remedy = {}) {
    const std::string_view effect = effect_of(call.function);
    if (effect.empty() || may_have_effects_) return;
    error(call, str(name_of(call.function), "() ", effect,
                    ", which only `let` and `forward` do; name its value there first", other_remedy));
  }

  void report_unknown_call(const Expr& callee, const Scope& scope, bool builds) {
    if (scope.later.contains(callee.name)) {
      report_unknown_name(callee.name, Place{*file_, callee.line, callee.column}, scope, diagnostics_);
      return;
    }
    std::vector<std::string> known;  // of equally near words, the first is suggested
    if (builds) {
      for (const ModelSpec& spec : built_in_models()) known.emplace_back(spec.name);
      for (const ModelDefinition& model : models_) known.push_back(model.name);
    }
    for (const FunctionSpec& spec : functions()) known.emplace_back(spec.name);
    known.insert(known.end(), scope.known.begin(), scope.known.end());
    const bool upper = callee.name[0] >= 'A' && callee.name[0] <= 'Z';
    const std::string near = nearest_word(callee.name, known);
    error(callee, str(upper && builds ? "unknown model `" : "unknown function `", callee.name, "`",
                      near.empty() ? std::string() : str("; did you mean `", near, "`?")));
  }

  bool is_model(const std::string& name) const {
    const std::vector<ModelSpec>& known = built_in_models();
    return find_model_definition(models_, name) != nullptr ||
           std::any_of(known.begin(), known.end(), [&](const ModelSpec& spec) { return spec.name == name; });
  }

  // `name.entry` of a labelled matrix must be an entry of at least one label.
  void check_matrix_entry(const Expr& expr) {
    const Expr& of = *expr.children[0];
    if (matrix_ == nullptr || of.kind != ExprKind::name) return;
    for (const MatrixName& name : *matrix_) {
      if (name.name != of.name || !name.labelled) continue;
      std::vector<std::string> known;
      for (const MatrixValue& value : name.values) {
        if (value.value.find(expr.name) != nullptr) return;
        for (const auto& [key, entry] : value.value.as_map()) known.push_back(key);
      }
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      error(expr, str("`", name.name, "` has no entry `", expr.name, "`", suggestion(expr.name, known)));
    }
  }

  // A literal that is compared with a matrix name must not be another type's spelling of one of its values, such as
  // 'none' of none: values of different types are never equal.
  void check_matrix_comparison(const Expr& expr, const Scope& scope) {
    const Expr &left = *expr.children[0], &right = *expr.children[1];
    if (expr.op == Op::equal || expr.op == Op::not_equal) {
      check_matrix_value(left, right, scope);
      check_matrix_value(right, left, scope);
    } else if (expr.op == Op::in && right.kind == ExprKind::list) {
      for (const ExprPtr& item : right.children) check_matrix_value(left, *item, scope);
    }
  }

  void check_matrix_value(const Expr& of, const Expr& literal, const Scope& scope) {
    if (matrix_ == nullptr || of.kind != ExprKind::name || literal.kind != ExprKind::literal) return;
    for (const MatrixName& name : *matrix_) {
      if (name.name != of.name || name.labelled || !scope.fixed.contains(of.name)) continue;
      const MatrixValue* alike = nullptr;
      for (const MatrixValue& value : name.values) {
        if (value.value == literal.value) return;
        if (unquoted(value.value) == unquoted(literal.value)) alike = &value;
      }
      if (alike == nullptr) continue;
      error(literal, str("`", name.name, "` is never ", to_text(literal), "; its value is ",
                         to_text(*make_literal(alike->value, name.place)), ", of another type"));
    }
  }

  static std::string unquoted(const Literal& value) { return value.is_text() ? value.as_text() : value.text(); }

  // Reports a condition of constants only, which is no evidence about a run.
  void check_evidence(const Expr& expr, const Scope& scope) {
    if (expr.kind == ExprKind::list) {
      for (const ExprPtr& item : expr.children) check_evidence(*item, scope);
      if (expr.children.empty()) error(expr, "`expect` without a condition");
      return;
    }
    if (is_constant(expr, scope)) error(expr, "a condition of constants only: its value does not depend on the run");
  }

  // Reports a comparison of constants only: of the first `num_values` arguments.
  void check_compared(const Step& step, std::size_t num_values, const Scope& scope) {
    for (std::size_t i = 0; i < num_values; ++i) {
      if (step.arguments[i] == nullptr || !is_constant(*step.arguments[i], scope)) return;
    }
    error(*step.arguments[0], "a comparison of constants only: its result does not depend on the run");
  }

  // Whether a name has the same value in every run that reaches a later step. The run may decide about a binding in a
  // block or under a condition, and about the value of a name with several bindings, such as a count of hooks.
  bool binds_constant(const Step& step, const NamedExpr& entry, const Scope& scope) const {
    return !in_block_ && step.when == nullptr && !step.raises && !scope.bound_again.contains(entry.name) &&
           entry.value != nullptr && is_constant(*entry.value, scope);
  }

  // Whether the value of an expression does not depend on the run.
  static bool is_constant(const Expr& expr, const Scope& scope) {
    bool constant = true;
    std::set<std::string> own_names;
    for_each_node(expr, [&](const Expr& node) {
      if (node.kind != ExprKind::list_of_each && node.kind != ExprKind::map_of_each) return;
      for (const std::string& name : node.names)
        if (!scope.is_known(name)) own_names.insert(name);
    });
    for_each_node(expr, [&](const Expr& node) {
      if (node.kind == ExprKind::name) {
        const bool called = find_function(node.name) != nullptr && !scope.is_known(node.name);
        constant = constant && (called || scope.fixed.contains(node.name) || scope.constants.contains(node.name) ||
                                own_names.contains(node.name));
      } else if (node.kind == ExprKind::call) {
        constant = constant && node.function != Function::none && spec_of(node.function).kind == FunctionKind::plain;
      }
    });
    return constant;
  }

  void check_model(const ModelDefinition& model, const std::vector<std::string>& constants) {
    const std::string& file = model.place.file;
    Scope scope = base_scope(constants);
    for (const ArgumentDefinition& argument : model.arguments) {
      if (argument.default_value != nullptr) check_expression(*argument.default_value, scope, file);
    }
    for (const ArgumentDefinition& argument : model.arguments) {
      scope.known.insert(argument.name);
      scope.fixed.erase(argument.name);
    }
    for (const NamedExpr& child : model.children) {
      check_expression(*child.value, scope, file, true);
      scope.known.insert(child.name);
    }
    for (const std::vector<NamedExpr>* list : {&model.parameters, &model.buffers, &model.non_persistent_buffers}) {
      for (const NamedExpr& entry : *list) {
        check_expression(*entry.value, scope, file);
        scope.known.insert(entry.name);
      }
    }
    for (const MethodDefinition& method : model.methods) {
      for (const auto& [name, value] : method.options) check_expression(*value, scope, file);
    }
    for (const MethodDefinition& method : model.methods) {
      Scope inner = scope;
      for (const MethodDefinition& other : model.methods) inner.known.insert(other.name);
      const auto hide = [&inner](const std::string& name) {
        inner.known.insert(name);
        inner.fixed.erase(name);
      };
      for (const std::string& name : method.inputs) hide(name);
      for (const auto& [name, value] : method.options) hide(name);
      for (const NamedExpr& entry : method.body) {
        check_expression(*entry.value, inner, file);
        hide(entry.name);
      }
    }
  }

  const std::vector<ModelDefinition>& models_;
  Diagnostics& diagnostics_;
  const std::vector<MatrixName>* matrix_ = nullptr;
  const std::string* file_ = nullptr;
  const ReportError report_error_ = [this](const Expr& at, std::string message) { error(at, std::move(message)); };
  bool may_have_effects_ = true;  // false in the arguments of steps other than let and forward
  bool in_block_ = false;         // the step is in a block of another step
};

}  // namespace

void check_scenario(const Scenario& scenario, const std::set<std::string>& assumed, Diagnostics& diagnostics) {
  Checker checker(scenario.models, diagnostics);
  checker.set_matrix(scenario.matrix);
  std::vector<std::string> constants;
  for (const NamedLiteral& parameter : scenario.parameters) constants.push_back(parameter.name);
  for (const MatrixName& name : scenario.matrix) {
    if (std::find(constants.begin(), constants.end(), name.name) != constants.end()) {
      diagnostics.error(name.place, str("`", name.name, "` is a parameter already"));
    }
    constants.push_back(name.name);
  }
  const Scope plain = base_scope({});
  const auto check_free = [&](const std::string& name, const Place& place) {
    if (!plain.known.contains(name)) return;
    diagnostics.error(place, str("`", name, "` is a variable or type and cannot be a parameter or matrix name"));
  };
  for (const NamedLiteral& parameter : scenario.parameters) check_free(parameter.name, parameter.place);
  for (const MatrixName& name : scenario.matrix) check_free(name.name, name.place);
  Scope scope = base_scope(constants);
  for (const std::vector<Rule>* rules : {&scenario.skip, &scenario.expect_failure}) {
    for (const Rule& rule : *rules) {
      if (rule.when != nullptr) checker.check_constant(*rule.when, scope, scenario.file);
    }
  }
  for (const EvidenceItem& item : scenario.evidence) checker.check_constant(*item.value, scope, scenario.file);
  checker.check_models(constants);
  for (const Stage& stage : scenario.stages) {
    if (stage.world_size != nullptr) checker.check_constant(*stage.world_size, scope, scenario.file);
    // The ranks of a stage are newly launched. Only files are kept from the stage before.
    Scope own = scope;
    own.known.insert(assumed.begin(), assumed.end());
    collect_bound_names(stage.steps, own.later, &own.bound_again);
    checker.check_steps(stage.steps, own);
  }
}

void check_routine(const Routine& routine, const std::set<std::string>& assumed, Diagnostics& diagnostics) {
  Checker checker(routine.models, diagnostics);
  Scope scope = base_scope({});
  for (const RoutineParameter& parameter : routine.parameters) {
    if (scope.cannot_bind.contains(parameter.name)) {
      diagnostics.error(parameter.place, str("`", parameter.name, "` is a variable or type and cannot be a parameter"));
    }
  }
  checker.check_models({});
  for (const RoutineParameter& parameter : routine.parameters) {
    scope.known.insert(parameter.name);
    scope.cannot_bind.insert(parameter.name);
  }
  scope.known.insert(assumed.begin(), assumed.end());
  collect_bound_names(routine.steps, scope.later, &scope.bound_again);
  checker.check_steps(routine.steps, scope);
  for (const std::string& name : routine.gives) {
    if (!scope.known.contains(name)) {
      diagnostics.error(routine.place, str("the routine gives `", name, "`, which no step binds"));
    }
  }
}

}  // namespace lockstep::scenario
