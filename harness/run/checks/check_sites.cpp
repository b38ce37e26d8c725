// Finds the checks that a case must reach: all checks of its steps and routines except those that parameters exclude. A
// condition is evaluated if it depends on parameters only, also through routine arguments and through `let` names that
// are bound once.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "harness/run/case_runner.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

namespace {

using scenario::Bindings;
using scenario::Expr;
using scenario::Literal;
using scenario::Step;
using scenario::Steps;

// Counts the bindings of each name in one scope. A name that a step other than `let` or `forward` binds counts twice:
// its value is unknown.
void count_bindings(const Steps& steps, std::map<std::string, int>& num_bindings) {
  const auto bind_argument = [&](const Step& step, const char* argument) {
    const Expr* names = step.argument(argument);
    if (!names) return;
    if (names->kind == scenario::ExprKind::list)
      for (const auto& child : names->children) num_bindings[child->value.is_text() ? child->value.as_text() : ""] += 2;
    else if (names->value.is_text())
      num_bindings[names->value.as_text()] += 2;
  };
  for (const Step& step : steps) {
    if (step.verb == scenario::Verb::let || step.verb == scenario::Verb::forward)
      for (const scenario::NamedExpr& entry : step.entries) ++num_bindings[entry.name];
    if (!step.as.empty()) num_bindings[step.as] += 2;
    for (const auto& [exported, name] : step.as_names) num_bindings[name] += 2;
    if (step.verb == scenario::Verb::for_each) bind_argument(step, "name");
    if (step.verb == scenario::Verb::for_each || step.verb == scenario::Verb::repeat) bind_argument(step, "index");
    count_bindings(step.steps, num_bindings);
    count_bindings(step.otherwise, num_bindings);
    for (const scenario::Branch& branch : step.among) count_bindings(branch.steps, num_bindings);
  }
}

class CheckCollector {
 public:
  explicit CheckCollector(std::vector<verdict::CheckSite>& sites) : sites_(sites) {}

  void scope(const Steps& steps, Bindings known, const std::string& file, const std::string& use_path,
             int scenario_line) {
    std::map<std::string, int> num_bindings;
    count_bindings(steps, num_bindings);
    Walk walk{std::move(known), num_bindings, file, use_path, scenario_line};
    for (const auto& [name, count] : num_bindings)
      if (count > 1) walk.known.erase(name);
    visit(steps, walk);
  }

 private:
  struct Walk {
    Bindings known;
    const std::map<std::string, int>& num_bindings;
    std::string file;
    std::string use_path;   // the places of the calling `use` steps
    int scenario_line = 0;  // of the first of them
  };

  static std::optional<Literal> constant(const Expr& expr, const Walk& walk) {
    try {
      return scenario::evaluate_constant(expr, walk.known, walk.file);
    } catch (const Error&) {
      return std::nullopt;  // depends on more than parameters
    }
  }
  static bool is_excluded(const Expr* condition, const Walk& walk) {
    if (!condition) return false;
    const std::optional<Literal> value = constant(*condition, walk);
    return value && value->is_bool() && !value->as_bool();
  }

  void visit(const Steps& steps, Walk& walk) {
    for (const Step& step : steps)
      if (!is_excluded(step.when.get(), walk)) visit_step(step, walk);
  }

  void visit_step(const Step& step, Walk& walk) {
    if (scenario::spec_of(step.verb).group == scenario::Group::checks) {
      const std::string id = walk.use_path + to_text(step.place);
      if (seen_.insert(id).second)
        sites_.push_back(
            {id,
             {std::string(scenario::name_of(step.verb)), step.place.file, step.place.line, step.place.column},
             walk.scenario_line});
    }
    switch (step.verb) {
      case scenario::Verb::let:
        return visit_let(step, walk);
      case scenario::Verb::if_:
        return visit_if(step, walk);
      case scenario::Verb::choose:
        return visit_choose(step, walk);
      case scenario::Verb::use:
        return visit_use(step, walk);
      case scenario::Verb::hook:
        return visit_hook(step, walk);
      default:
        visit(step.steps, walk);
        visit(step.otherwise, walk);
    }
  }

  void visit_let(const Step& step, Walk& walk) {
    for (const scenario::NamedExpr& entry : step.entries) {
      const auto at = walk.num_bindings.find(entry.name);
      if (step.when || at == walk.num_bindings.end() || at->second != 1) continue;
      if (std::optional<Literal> value = constant(*entry.value, walk))
        walk.known.insert_or_assign(entry.name, std::move(*value));
    }
  }

  void visit_if(const Step& step, Walk& walk) {
    const Expr* condition = step.argument("condition");
    const std::optional<Literal> value = condition ? constant(*condition, walk) : std::nullopt;
    const bool decided = value && value->is_bool();
    if (!decided || value->as_bool()) visit(step.steps, walk);
    if (!decided || !value->as_bool()) visit(step.otherwise, walk);
  }

  void visit_choose(const Step& step, Walk& walk) {
    const Expr* chosen = step.argument("value");
    const std::optional<Literal> value = chosen ? constant(*chosen, walk) : std::nullopt;
    for (const scenario::Branch& branch : step.among)
      if (!value || *value == branch.label) visit(branch.steps, walk);
  }

  // Within a hook, its predefined names hide those of the scope around it.
  void visit_hook(const Step& step, Walk& walk) {
    Bindings hidden;
    for (const std::string_view name : scenario::hook_names()) hidden.insert(walk.known.extract(std::string(name)));
    visit(step.steps, walk);
    walk.known.merge(hidden);
  }

  // A routine has its own scope: it sees its arguments and the names that are visible everywhere.
  void visit_use(const Step& step, Walk& walk) {
    Bindings known;
    for (const char* name :
         {"world_size", "launch", "device", "float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"})
      if (const auto at = walk.known.find(name); at != walk.known.end()) known.insert(*at);
    for (const scenario::RoutineParameter& parameter : step.routine->parameters) {
      const Expr* value = parameter.default_value.get();
      for (const scenario::NamedExpr& entry : step.entries)
        if (entry.name == parameter.name) value = entry.value.get();
      if (!value) continue;
      if (std::optional<Literal> literal = constant(*value, walk))
        known.insert_or_assign(parameter.name, std::move(*literal));
    }
    scope(step.routine->steps, std::move(known), step.routine->file, walk.use_path + to_text(step.place) + ">",
          walk.scenario_line > 0 ? walk.scenario_line : step.place.line);
  }

  std::vector<verdict::CheckSite>& sites_;
  std::set<std::string> seen_;
};

}  // namespace

verdict::Expectation expectation_of(const CaseSpec& spec) {
  const scenario::Case& test_case = *spec.test_case;
  const scenario::Evaluation evaluation(spec.scenario->file, "the conditions of a case");
  verdict::Expectation expectation;
  Bindings known;
  for (std::string_view type : scenario::type_names()) known.emplace(std::string(type), Literal(std::string(type)));
  for (const auto& [name, value] : test_case.parameters) known.insert_or_assign(name, value);
  for (const auto& [name, value] : test_case.params) known.insert_or_assign(name, value);
  known.insert_or_assign("launch", Literal(std::string(name_of(test_case.launch))));
  known.insert_or_assign("device", Literal(test_case.device));
  CheckCollector collector(expectation.checks);
  for (std::size_t i = 0; i < spec.scenario->stages.size(); ++i) {
    const int world_size = i < test_case.stages.size() ? test_case.stages[i].world_size : test_case.world_size;
    known.insert_or_assign("world_size", Literal(world_size));
    collector.scope(spec.scenario->stages[i].steps, known, spec.scenario->file, "", 0);
  }
  if (test_case.expect_failure) {
    verdict::ExpectedFailure failure;
    failure.reason = test_case.expect_failure->reason;
    failure.line = test_case.expect_failure->line;
    if (!test_case.expect_failure->message.empty()) failure.message = test_case.expect_failure->message;
    failure.verdict = verdict::status_from_name(test_case.expect_failure->verdict);
    failure.rank = test_case.expect_failure->rank;
    failure.also = test_case.expect_failure->also;
    if (!test_case.expect_failure->flight_recorder.empty())
      failure.flight_recorder = test_case.expect_failure->flight_recorder;
    expectation.failure = std::move(failure);
  }
  for (const auto& [name, value] : test_case.evidence) expectation.evidence.push_back({name, value});
  return expectation;
}

}  // namespace lockstep::run
