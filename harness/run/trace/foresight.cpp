#include "harness/run/trace/foresight.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "engine/autograd/autograd.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/core/resources.hpp"
#include "harness/run/checks/event_texts.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/foresight_values.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/scenario/regular_file.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

namespace foresight {

namespace {

constexpr int most_visits = 20'000;           // steps followed per case; the rest is not checked
constexpr std::int64_t most_iterations = 64;  // followed per loop
struct TooLong {};

class Walk {
 public:
  Walk(const scenario::Case& one, int rank, int world_size, scenario::Diagnostics& diagnostics)
      : diagnostics_(diagnostics), session_(session_before_launch(one, rank, world_size)) {}

  void stage(const scenario::Scenario& of, const Steps& list) {
    auto frame = std::make_shared<Frame>();
    frame->session = &session_;
    frame->models = &of.models;
    frame->file = of.file;
    scope(list, frame);
  }
  bool has_check() const { return has_check_; }

 private:
  // Follows the steps of a file or a routine. Names that hooks bind stay unknown: their value can change at any time.
  void scope(const Steps& list, const FramePtr& frame) {
    std::set<std::string> outer = std::exchange(unsteady_, names_bound_in_hooks(list));
    steps(list, frame);
    unsteady_ = std::move(outer);
  }

  void steps(const Steps& list, const FramePtr& frame) {
    for (const Step& one : list) step(one, frame);
  }

  void step(const Step& one, const FramePtr& frame) {
    if (++visits_ > most_visits) throw TooLong();
    const std::optional<bool> runs = one.when ? condition(*one.when, frame) : true;
    if (runs && !*runs) return;
    if (!runs || one.raises || one.verb == Verb::hook) {
      has_check_ = has_check_ || contains_check(one);
      if (runs && !one.raises) arguments(one, frame);
      forget(one, frame);
      return;
    }
    has_check_ = has_check_ || scenario::spec_of(one.verb).group == scenario::Group::checks;
    arguments(one, frame);
    perform(one, frame);
  }

  void perform(const Step& one, const FramePtr& frame) {
    switch (one.verb) {
      case Verb::let:
        for (const scenario::NamedExpr& entry : one.entries) bind(entry.name, value(*entry.value, frame), frame);
        return;
      case Verb::model:
        return bind(one.as, built_model(*one.argument("build"), Scope{frame}), frame);
      case Verb::copy:
        return bind(one.as, copied(value(*one.argument("of"), frame)), frame);
      case Verb::repeat:
        return repeat(one, frame);
      case Verb::for_each:
        return for_each(one, frame);
      case Verb::if_: {
        const std::optional<bool> holds = condition(*one.argument("condition"), frame);
        return holds ? steps(*holds ? one.steps : one.otherwise, frame) : unknown_branch(one, frame);
      }
      case Verb::choose:
        return choose(one, frame);
      case Verb::use:
        return use(one, frame);
      default:
        steps(one.steps, frame);
        for (const std::string& name : names_bound_by(one)) frame->names.erase(name);
    }
  }

  void unknown_branch(const Step& one, const FramePtr& frame) {
    has_check_ = has_check_ || contains_check(one);
    forget(one, frame);
  }

  // ---- control ----
  // A loop runs at least once, so that the steps of an unknown number of iterations are followed once.
  void repeat(const Step& one, const FramePtr& frame) {
    const std::optional<Value> times = value(*one.argument("times"), frame);
    const bool known = times && times->is(Value::Kind::integer);
    const std::int64_t iterations = known ? times->as_int("times") : 1;
    const std::vector<std::string> index = literal_names(one.argument("index"));
    for (std::int64_t i = 0; i < std::min(iterations, most_iterations); ++i) {
      for (const std::string& name : index) bind(name, Value(i), frame);
      steps(one.steps, frame);
    }
    if (!known || iterations > most_iterations) forget(one, frame);
  }

  void for_each(const Step& one, const FramePtr& frame) {
    const std::optional<Value> in = value(*one.argument("in"), frame);
    const bool known = in && in->is(Value::Kind::list);
    const List items = known ? in->as_list("in") : List(1);
    const std::vector<std::string> names = literal_names(one.argument("name"));
    const std::vector<std::string> index = literal_names(one.argument("index"));
    const auto iterations = std::min(items.size(), static_cast<std::size_t>(most_iterations));
    for (std::size_t i = 0; i < iterations; ++i) {
      for (std::size_t k = 0; k < names.size(); ++k)
        bind(names[k], known ? unpacked(items[i], k, names.size()) : std::nullopt, frame);
      for (const std::string& name : index) bind(name, Value(static_cast<std::int64_t>(i)), frame);
      steps(one.steps, frame);
    }
    if (!known || items.size() > iterations) forget(one, frame);
  }

  static std::optional<Value> unpacked(const Value& item, std::size_t k, std::size_t number) {
    if (number == 1) return item;
    if (!item.is(Value::Kind::list) || item.as_list("item").size() != number) return std::nullopt;
    return item.as_list("item")[k];
  }

  void choose(const Step& one, const FramePtr& frame) {
    const std::optional<Value> chosen = value(*one.argument("value"), frame);
    if (!chosen) return unknown_branch(one, frame);
    for (const scenario::Branch& branch : one.among)
      if (equal(*chosen, from_literal(branch.label))) return steps(branch.steps, frame);
  }

  void use(const Step& one, const FramePtr& frame) {
    const scenario::Routine& routine = *one.routine;
    auto inner = std::make_shared<Frame>();
    inner->session = &session_;
    inner->models = &routine.models;
    inner->routine = &routine;
    inner->file = routine.file;
    inner->use_path = frame->use_path.empty() ? to_text(one.place) : frame->use_path;
    for (const scenario::RoutineParameter& parameter : routine.parameters) {
      std::optional<Value> known;
      if (parameter.default_value) known = value(*parameter.default_value, inner);
      for (const scenario::NamedExpr& entry : one.entries)
        if (entry.name == parameter.name) known = routine_argument(parameter, *entry.value, frame);
      if (known) inner->names[parameter.name] = std::move(*known);
    }
    scope(routine.steps, inner);
    for (const auto& [inner_name, outer_name] : one.as_names) {
      const auto at = inner->names.find(inner_name);
      bind(outer_name, at == inner->names.end() ? std::nullopt : std::optional(at->second), frame);
    }
  }

  std::optional<Value> routine_argument(const scenario::RoutineParameter& parameter, const Expr& given,
                                        const FramePtr& frame) {
    std::optional<Value> known = value(given, frame);
    if (!known || parameter.type != "modules") return known;
    try {
      return modules_at(*known, Scope{frame});
    } catch (const UnboundName&) {  // known only during a run
    } catch (const Error& error) {
      report(given, error.message(), frame);
    }
    return std::nullopt;
  }

  // ---- names ----
  void bind(const std::string& name, std::optional<Value> known, const FramePtr& frame) {
    if (name.empty()) return;
    if (known && !unsteady_.contains(name))
      frame->names[name] = std::move(*known);
    else
      frame->names.erase(name);
  }
  static void forget(const Step& one, const FramePtr& frame) {
    std::set<std::string> names;
    collect_bound(one, names);
    for (const std::string& name : names) frame->names.erase(name);
  }
  static std::optional<Value> value(const Expr& expr, const FramePtr& frame) { return known_value(expr, Scope{frame}); }
  static std::optional<bool> condition(const Expr& expr, const FramePtr& frame) {
    const std::optional<Value> known = value(expr, frame);
    if (!known || !known->is(Value::Kind::boolean)) return std::nullopt;
    return known->as_bool("a condition");
  }

  // ---- checks ----
  void report(const Expr& at, const std::string& message, const FramePtr& frame) {
    diagnostics_.error({frame->file, at.line, at.column},
                       frame->routine ? str(message, " (used by ", frame->use_path, ")") : message);
  }

  void arguments(const Step& one, const FramePtr& frame) {
    const scenario::VerbSpec& spec = scenario::spec_of(one.verb);
    for (std::size_t i = 0; i < one.arguments.size(); ++i) {
      if (!one.arguments[i] || !one.given[i]) continue;
      const scenario::ArgumentSpec& argument = spec.arguments[i];
      if (argument.type == scenario::ArgType::path || argument.type == scenario::ArgType::paths)
        for (const auto& [text, at] : texts(*one.arguments[i], frame)) path(text, *at, argument.name, one.verb, frame);
      else if (argument.type != scenario::ArgType::module)
        members(*one.arguments[i], frame);
    }
    for (const scenario::NamedExpr& entry : one.entries) members(*entry.value, frame);
    if (one.verb == Verb::expect_events) events(one, frame);
  }

  // The known texts of a literal argument, each with its place.
  static std::vector<std::pair<std::string, const Expr*>> texts(const Expr& expr, const FramePtr& frame) {
    std::vector<std::pair<std::string, const Expr*>> all;
    const bool list = expr.kind == ExprKind::list;
    for (std::size_t i = 0; i < (list ? expr.children.size() : 1); ++i) {
      const Expr& item = list ? *expr.children[i] : expr;
      const std::optional<Value> known = value(item, frame);
      if (!known) continue;
      const List items = known->is(Value::Kind::list) ? known->as_list("texts") : List{*known};
      for (const Value& text : items)
        if (text.is(Value::Kind::text)) all.emplace_back(text.as_text("text"), &item);
    }
    return all;
  }

  void path(const std::string& text, const Expr& at, const std::string& argument, Verb verb, const FramePtr& frame) {
    const Scope scope{frame};
    const bool parameters = argument == "parameters" || argument == "parameter";
    try {
      if (parameters)
        find_parameters(text, scope);
      else
        find_modules(text, scope);
    } catch (const UnboundName&) {
      return;  // known only during a run
    } catch (const Error& error) {
      if (argument == "ignored" && (verb == Verb::fully_shard || verb == Verb::flat_shard) &&
          matches_parameters(text, scope))
        return;
      report(at, error.message(), frame);
    }
  }
  static bool matches_parameters(const std::string& text, const Scope& scope) {
    try {
      return !find_parameters(text, scope).empty();
    } catch (const Error&) {
      return false;
    }
  }

  void events(const Step& one, const FramePtr& frame) {
    std::vector<ModuleMatch> model;
    try {
      if (const Expr* named = one.argument("model"))
        for (const auto& [text, at] : texts(*named, frame)) model = find_modules(text, Scope{frame});
    } catch (const Error&) {
      model.clear();  // the check of the path reports the error
    }
    for (const char* argument : {"kinds", "exactly", "in_order", "never"}) {
      const Expr* list = one.argument(argument);
      if (!list) continue;
      for (const auto& [text, at] : texts(*list, frame)) {
        try {
          if (std::string_view(argument) == "kinds")
            event_kind(text);
          else if (const EventText event = parse_event(text); model.size() == 1)
            check_paths(event, model.front().module, model.front().path);
        } catch (const Error& error) {
          report(*at, error.message(), frame);
        }
      }
    }
  }

  // Checks members of modules, but only in operands that are always evaluated.
  void members(const Expr& expr, const FramePtr& frame) {
    switch (expr.kind) {
      case ExprKind::attribute:
        if (const std::optional<Value> of = chain_value(*expr.children[0], frame); of && of->is(Value::Kind::module)) {
          try {
            attribute_of(*of, expr.name);
          } catch (const Error& error) {
            report(expr, error.message(), frame);
          }
          return;
        }
        return members(*expr.children[0], frame);
      case ExprKind::conditional:
      case ExprKind::list_of_each:
        return members(*expr.children[1], frame);
      case ExprKind::map_of_each:
        return members(*expr.children[2], frame);
      case ExprKind::binary:
        members(*expr.children[0], frame);
        if (expr.op != scenario::Op::and_ && expr.op != scenario::Op::or_) members(*expr.children[1], frame);
        return;
      default:
        for (const scenario::ExprPtr& child : expr.children)
          if (child) members(*child, frame);
    }
  }
  // The value of a chain `name.member.member`.
  static std::optional<Value> chain_value(const Expr& expr, const FramePtr& frame) {
    const Expr* at = &expr;
    while (at->kind == ExprKind::attribute) at = at->children[0].get();
    return at->kind == ExprKind::name ? value(expr, frame) : std::nullopt;
  }

  scenario::Diagnostics& diagnostics_;
  Session session_;
  std::set<std::string> unsteady_;  // names that hooks bind
  int visits_ = 0;
  bool has_check_ = false;
};

// Follows the case on its first and last rank. Returns whether a step of it may be a check.
bool walk_case(const scenario::Case& one, scenario::Diagnostics& diagnostics) {
  bool has_check = false;
  for (std::size_t i = 0; i < one.scenario->stages.size(); ++i) {
    const int world_size = i < one.stages.size() ? one.stages[i].world_size : one.world_size;
    for (const int rank : std::set<int>{0, world_size - 1}) {
      RankContext context(rank, world_size);
      const RankScope current(context);
      const NoGrad no_grad;
      Walk walk(one, rank, world_size, diagnostics);
      try {
        walk.stage(*one.scenario, one.scenario->stages[i].steps);
      } catch (const TooLong&) {
        has_check = true;  // the steps that were not followed may hold a check
      }
      has_check = has_check || walk.has_check();
    }
  }
  return has_check;
}

void add_source(const scenario::Scenario& of, scenario::Diagnostics& diagnostics) {
  if (of.path.empty()) return;
  try {
    diagnostics.add_source(of.file, scenario::read_regular_file(of.path, scenario::limits::file_bytes));
  } catch (const ResourceError&) {
    throw;
  } catch (const Error&) {  // messages then lack the line of the file
  }
}

}  // namespace

}  // namespace foresight

void check_before_launch(const std::vector<scenario::Case>& cases, scenario::Diagnostics& diagnostics) {
  std::set<const scenario::Scenario*> seen, unchecked;
  for (const scenario::Case& one : cases) {
    const scenario::Scenario* of = one.scenario.get();
    if (one.skip || one.expect_failure) continue;
    if (seen.insert(of).second) foresight::add_source(*of, diagnostics);
    if (foresight::walk_case(one, diagnostics) || !unchecked.insert(of).second) continue;
    diagnostics.error(of->place, str("no step checks anything in the case [", one.id,
                                     "], which cannot pass without evidence; add an `expect`, or a `skip` for it"));
  }
}

}  // namespace lockstep::run
