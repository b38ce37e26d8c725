// Which checks a case must reach: those of its steps and routines that parameters do not rule out. Conditions are
// evaluated as far as they hang on parameters alone, through `let` names that are bound once and routine arguments.
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "harness/run/case_runner.hpp"
#include "harness/scenario/evaluation.hpp"

namespace lockstep::run {

namespace {

using scenario::Bindings;
using scenario::Expr;
using scenario::Literal;
using scenario::Step;
using scenario::Steps;

// How often each name of one scope is bound, whatever binds it.
void count_bindings(const Steps& steps, std::map<std::string, int>& times) {
  const auto bind_argument = [&](const Step& step, const char* argument) {
    const Expr* names = step.argument(argument);
    if (!names) return;
    if (names->kind == scenario::ExprKind::list)
      for (const auto& child : names->children) times[child->value.is_text() ? child->value.as_text() : ""] += 2;
    else if (names->value.is_text())
      times[names->value.as_text()] += 2;
  };
  for (const Step& step : steps) {
    if (step.verb == scenario::Verb::let || step.verb == scenario::Verb::forward)
      for (const scenario::NamedExpr& entry : step.entries) ++times[entry.name];
    if (!step.as.empty()) times[step.as] += 2;
    for (const auto& [its, mine] : step.as_names) times[mine] += 2;
    if (step.verb == scenario::Verb::for_each) bind_argument(step, "name");
    if (step.verb == scenario::Verb::for_each || step.verb == scenario::Verb::repeat) bind_argument(step, "index");
    count_bindings(step.steps, times);
    count_bindings(step.otherwise, times);
    for (const scenario::Branch& branch : step.among) count_bindings(branch.steps, times);
  }
}

class Collector {
 public:
  explicit Collector(std::vector<verdict::CheckSite>& sites) : sites_(sites) {}

  void scope(const Steps& steps, Bindings known, const std::string& file, const std::string& way) {
    std::map<std::string, int> times;
    count_bindings(steps, times);
    Walk walk{std::move(known), times, file, way};
    for (const auto& [name, count] : times)
      if (count > 1) walk.known.erase(name);
    visit(steps, walk);
  }

 private:
  struct Walk {
    Bindings known;
    const std::map<std::string, int>& times;
    std::string file;
    std::string way;
  };

  static std::optional<Literal> constant(const Expr& expr, const Walk& walk) {
    try {
      return scenario::evaluate_constant(expr, walk.known, walk.file);
    } catch (const Error&) {
      return std::nullopt;  // it hangs on more than parameters
    }
  }
  static bool ruled_out(const Expr* condition, const Walk& walk) {
    if (!condition) return false;
    const std::optional<Literal> value = constant(*condition, walk);
    return value && value->is_bool() && !value->as_bool();
  }

  void visit(const Steps& steps, Walk& walk) {
    for (const Step& step : steps)
      if (!ruled_out(step.when.get(), walk)) visit_step(step, walk);
  }

  void visit_step(const Step& step, Walk& walk) {
    if (scenario::spec_of(step.verb).group == scenario::Group::checks) {
      const std::string id = walk.way + to_text(step.place);
      if (seen_.insert(id).second)
        sites_.push_back(
            {id, {std::string(scenario::name_of(step.verb)), step.place.file, step.place.line, step.place.column}});
    }
    switch (step.verb) {
      case scenario::Verb::let:
        for (const scenario::NamedExpr& entry : step.entries) {
          const auto at = walk.times.find(entry.name);
          if (step.when || at == walk.times.end() || at->second != 1) continue;
          if (std::optional<Literal> value = constant(*entry.value, walk))
            walk.known.insert_or_assign(entry.name, std::move(*value));
        }
        break;
      case scenario::Verb::if_: {
        const Expr* condition = step.argument("condition");
        const std::optional<Literal> value = condition ? constant(*condition, walk) : std::nullopt;
        const bool decided = value && value->is_bool();
        if (!decided || value->as_bool()) visit(step.steps, walk);
        if (!decided || !value->as_bool()) visit(step.otherwise, walk);
        break;
      }
      case scenario::Verb::choose: {
        const Expr* chosen = step.argument("value");
        const std::optional<Literal> value = chosen ? constant(*chosen, walk) : std::nullopt;
        for (const scenario::Branch& branch : step.among)
          if (!value || *value == branch.label) visit(branch.steps, walk);
        break;
      }
      case scenario::Verb::use: {
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
        scope(step.routine->steps, std::move(known), step.routine->file, walk.way + to_text(step.place) + ">");
        break;
      }
      default:
        visit(step.steps, walk);
        visit(step.otherwise, walk);
    }
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
  Collector collector(expectation.checks);
  for (std::size_t i = 0; i < spec.scenario->stages.size(); ++i) {
    const int world_size = i < test_case.stages.size() ? test_case.stages[i].world_size : test_case.world_size;
    known.insert_or_assign("world_size", Literal(world_size));
    collector.scope(spec.scenario->stages[i].steps, known, spec.scenario->file, "");
  }
  if (test_case.expect_failure) {
    verdict::ExpectedFailure failure;
    failure.reason = test_case.expect_failure->reason;
    failure.line = test_case.expect_failure->line;
    if (!test_case.expect_failure->message.empty()) failure.message = test_case.expect_failure->message;
    expectation.failure = std::move(failure);
  }
  return expectation;
}

}  // namespace lockstep::run
