// The output of the commands list and explain.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "engine/core/printable.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/describe.hpp"

namespace lockstep::scenario {

namespace {

constexpr std::size_t shown_cases = 24;

std::string plural(std::size_t count, std::string_view word) { return str(count, " ", word, count == 1 ? "" : "s"); }

std::string mirrors_text(const Scenario& scenario) {
  if (!scenario.mirrors) return "-";
  std::string out = str(scenario.mirrors->document, " ", scenario.mirrors->test);
  if (scenario.mirrors->number) out += str(" (", *scenario.mirrors->number, ")");
  return out;
}

template <class Items, class Text>
std::string joined(const Items& items, std::string_view separator, Text text) {
  std::string out;
  for (const auto& item : items) out += str(out.empty() ? std::string_view() : separator, text(item));
  return out;
}

std::string ranks_text(const Scenario& scenario) {
  return str(joined(scenario.ranks.world_sizes, ",", [](int size) { return str(size); }), " ",
             joined(scenario.ranks.launches, ",", [](Launch launch) { return std::string(name_of(launch)); }));
}

// An argument as it is written in a file: literal texts have no quotes.
std::string argument_text(const Expr& value, ArgType type) {
  if (!is_literal(type)) return to_text(value);
  if (value.kind == ExprKind::list) {
    return str("[", joined(value.children, ", ", [&](const ExprPtr& item) { return argument_text(*item, type); }), "]");
  }
  if (value.kind == ExprKind::literal && value.value.is_text()) return value.value.as_text();
  return to_text(value);
}

ArgType type_of(const Step& step, const NamedExpr& entry) {
  const RoutineParameter* parameter = step.routine == nullptr ? nullptr : step.routine->parameter(entry.name);
  return parameter == nullptr ? ArgType::any : argument_type_of(parameter->type);
}

std::string entries_text(const Step& step) {
  const bool equals = step.verb != Verb::use;
  return joined(step.entries, ", ", [&](const NamedExpr& entry) {
    return str(entry.name, equals ? " = " : ": ", argument_text(*entry.value, type_of(step, entry)));
  });
}

std::string given(const Step& step, std::string_view name) {
  const VerbSpec& spec = spec_of(step.verb);
  const std::size_t index = *spec.index_of(name);
  const Expr* value = step.arguments[index].get();
  return value == nullptr ? std::string() : argument_text(*value, spec.arguments[index].type);
}

// The verb with its arguments, without `as`, `when` and other modifiers.
std::string call_text(const Step& step) {
  const VerbSpec& spec = spec_of(step.verb);
  std::string out(spec.name);
  std::string separator = " ";
  for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
    if (!step.given[i] || step.arguments[i] == nullptr) continue;
    const std::string value = argument_text(*step.arguments[i], spec.arguments[i].type);
    const bool bare = spec.arguments[i].alone || static_cast<int>(i) < spec.num_in_order;
    out += bare ? str(separator, value) : str(separator, spec.arguments[i].name, ": ", value);
    separator = ", ";
  }
  if (step.verb == Verb::use) {
    if (!step.entries.empty()) out += str(" with ", entries_text(step));
  } else if (!step.entries.empty()) {
    out += str(" ", entries_text(step));
  }
  return out;
}

class Explainer {
 public:
  explicit Explainer(std::string& out) : out_(out) {}

  void steps(const Steps& list, int depth) {
    for (const Step& step : list) {
      add_line(depth, str("- ", step_text(step)), step.place);
      if (!step.note.empty()) add_line(depth + 1, str("(", step.note, ")"), {});
      if (step.routine != nullptr) {
        add_line(depth + 1, step.routine->summary, {});
        steps(step.routine->steps, depth + 1);
      }
      steps(step.steps, depth + 1);
      if (!step.otherwise.empty()) {
        add_line(depth, "  else:", {});
        steps(step.otherwise, depth + 1);
      }
      for (const Branch& branch : step.among) {
        add_line(depth + 1, str(branch.label.text(), ":"), branch.place);
        steps(branch.steps, depth + 2);
      }
    }
  }

  void failures(const Steps& list) {
    for (const Step& step : list) {
      const std::string text = failure(step);
      if (!text.empty()) {
        const std::string when = step.when == nullptr ? "" : str(" (checked when ", to_text(*step.when), ")");
        const std::string line = str("  - ", text, when, "  [", to_text(step.place), "]\n");
        // The failures of a routine that is used twice are listed once.
        if (out_.find(line) == std::string::npos) out_ += line;
      }
      if (step.routine != nullptr) failures(step.routine->steps);
      failures(step.steps);
      failures(step.otherwise);
      for (const Branch& branch : step.among) failures(branch.steps);
    }
  }

 private:
  void add_line(int depth, const std::string& text, const Place& place) {
    std::string line = str(std::string(static_cast<std::size_t>(2 + 2 * depth), ' '), text);
    if (place.line > 0) {
      line.resize(std::max<std::size_t>(line.size() + 2, 72), ' ');
      const std::size_t slash = place.file.rfind('/');
      line += str(slash == std::string::npos ? place.file : place.file.substr(slash + 1), ":", place.line);
    }
    out_ += str(line, "\n");
  }

  static std::string tolerance(const Step& step) {
    if (given(step, "bits") == "true") return "in any bit";
    const std::string rtol = given(step, "rtol");
    const std::string atol = given(step, "atol");
    const std::string largest = given(step, "of_largest");
    std::string out = rtol.empty() && atol.empty() ? "by more than the tolerance of their type"
                                                   : str("by more than rtol ", rtol.empty() ? "of their type" : rtol,
                                                         ", atol ", atol.empty() ? "of their type" : atol);
    if (largest != "0") out += str(" and ", largest, " of the largest");
    return out;
  }

  static std::string failure(const Step& step) {
    if (step.raises) {
      return str("`", call_text(step), "` does not fail, or with another message than `",
                 argument_text(*step.raises->message, ArgType::text), "`");
    }
    switch (step.verb) {
      case Verb::expect: {
        const Expr& that = *step.arguments[0];
        if (that.kind != ExprKind::list) return str("`", to_text(that), "` does not hold");
        return str("one of ",
                   joined(that.children, ", ", [](const ExprPtr& item) { return str("`", to_text(*item), "`"); }),
                   " does not hold");
      }
      case Verb::expect_equal:
        return str("`", given(step, "actual"), "` and `", given(step, "expected"), "` differ ", tolerance(step));
      case Verb::expect_different:
        return str("`", given(step, "actual"), "` and `", given(step, "expected"), "` agree");
      case Verb::expect_across:
        return given(step, "same") == "false"
                   ? str("two ranks of `", given(step, "mesh"), "` hold the same `", given(step, "value"), "`")
                   : str("ranks of `", given(step, "mesh"), "` hold different bits of `", given(step, "value"), "`");
      case Verb::expect_collectives: {
        std::string expected;
        for (std::string_view argument : {"exactly", "total", "bytes"}) {
          if (!given(step, argument).empty())
            expected += str(expected.empty() ? "" : ", ", argument, " ", given(step, argument));
        }
        const std::string phase = given(step, "phase");
        return str("the collectives of `", given(step, "during"), "`", phase.empty() ? "" : str(" in ", phase),
                   " are not ", expected);
      }
      case Verb::expect_launches:
      case Verb::expect_events: {
        std::string expected;
        for (std::string_view argument : {"exactly", "in_order", "never", "ordered", "concurrent"}) {
          if (!given(step, argument).empty())
            expected += str(expected.empty() ? "" : ", ", argument, " ", given(step, argument));
        }
        return str("the ", step.verb == Verb::expect_events ? "events" : "launches", " of `", given(step, "during"),
                   "` are not ", expected);
      }
      default:
        return {};
    }
  }

  std::string& out_;
};

nlohmann::ordered_json row_json(const ListRow& row) {
  const Scenario& scenario = *row.scenario;
  nlohmann::ordered_json out;
  out["scenario"] = scenario.name;
  out["summary"] = scenario.summary;
  out["mirrors"] = nullptr;
  if (scenario.mirrors) {
    out["mirrors"] = {{"document", scenario.mirrors->document}, {"test", scenario.mirrors->test}};
    out["mirrors"]["number"] = nullptr;
    if (scenario.mirrors->number) out["mirrors"]["number"] = *scenario.mirrors->number;
  }
  out["file"] = scenario.file;
  out["world_size"] = scenario.ranks.world_sizes;
  out["launch"] = nlohmann::ordered_json::array();
  for (Launch launch : scenario.ranks.launches) out["launch"].push_back(name_of(launch));
  out["device"] = scenario.devices;
  out["tags"] = scenario.tags;
  out["cases"] = nlohmann::ordered_json::array();
  for (const Case& one : row.cases) {
    nlohmann::ordered_json entry = {{"case", one.id}, {"world_size", one.world_size}};
    if (one.skip) entry["skip"] = *one.skip;
    if (one.unsupported) entry["unsupported"] = *one.unsupported;
    if (one.expect_failure) entry["expect_failure"] = one.expect_failure->reason;
    out["cases"].push_back(std::move(entry));
  }
  return out;
}

std::size_t num_run(const std::vector<Case>& cases) {
  return static_cast<std::size_t>(std::count_if(cases.begin(), cases.end(), [](const Case& one) { return !one.skip; }));
}

}  // namespace

std::vector<ListRow> list_rows(const std::vector<std::shared_ptr<const Scenario>>& scenarios,
                               const ExpandOptions& options) {
  std::vector<ListRow> rows;
  for (Case& one : expand_all(scenarios, options)) {
    if (rows.empty() || rows.back().scenario != one.scenario) rows.push_back(ListRow{one.scenario, {}});
    rows.back().cases.push_back(std::move(one));
  }
  return rows;
}

std::string list_text(const std::vector<ListRow>& rows) {
  std::vector<std::vector<std::string>> table = {{"SCENARIO", "CASES", "RANKS", "MIRRORS"}};
  std::size_t total = 0;
  for (const ListRow& row : rows) {
    const std::size_t run = num_run(row.cases);
    total += run;
    const std::size_t skipped = row.cases.size() - run;
    table.push_back({printable_line(row.scenario->name), skipped == 0 ? str(run) : str(run, " +", skipped, " skipped"),
                     ranks_text(*row.scenario), mirrors_text(*row.scenario)});
  }
  std::vector<std::size_t> widths(4);
  for (const auto& line : table) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : table) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      out += line[i];
      if (i + 1 < line.size()) out += std::string(widths[i] - line[i].size() + 2, ' ');
    }
    out += '\n';
  }
  return str(out, plural(rows.size(), "scenario"), ", ", plural(total, "case"), " to run\n");
}

std::string list_json(const std::vector<ListRow>& rows) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const ListRow& row : rows) out.push_back(row_json(row));
  return str(out.dump(1), "\n");
}

std::string step_text(const Step& step) {
  std::string out = call_text(step);
  if (!step.as.empty()) out += str(" -> ", step.as);
  if (!step.as_names.empty()) {
    out += str(" -> ", joined(step.as_names, ", ", [](const auto& names) {
                 return names.first == names.second ? names.second : str(names.second, " (its ", names.first, ")");
               }));
  }
  if (step.when != nullptr) out += str(" when ", to_text(*step.when));
  if (!step.call_site_name.empty()) out += str(" at place ", step.call_site_name);
  if (step.raises) out += str(" raises `", argument_text(*step.raises->message, ArgType::text), "`");
  return out;
}

std::string explain(const std::shared_ptr<const Scenario>& scenario, const ExpandOptions& options) {
  std::string out = str(printable_line(scenario->name), "\n  ", printable_line(scenario->summary), "\n");
  if (scenario->mirrors) out += str("  Mirrors ", mirrors_text(*scenario), ".\n");
  for (const std::string& link : scenario->see) out += str("  See ", link, "\n");

  const std::vector<Case> cases = expand(scenario, options);
  const std::size_t run = num_run(cases);
  out += str("\nCases: ", run, " to run", cases.size() > run ? str(", ", cases.size() - run, " skipped") : "", "\n");
  for (std::size_t i = 0; i < cases.size() && i < shown_cases; ++i) {
    const Case& one = cases[i];
    out += str("  ", printable_line(one.id));
    if (one.skip) {
      out += str("  SKIP: ", *one.skip);
    } else if (one.unsupported) {
      out += str("  UNSUPPORTED: ", *one.unsupported);
    } else if (one.expect_failure) {
      out += str("  must fail: ", one.expect_failure->reason);
    }
    out += '\n';
  }
  if (cases.size() > shown_cases) out += str("  and ", cases.size() - shown_cases, " more\n");
  if (!scenario->parameters.empty()) {
    out += str("Parameters (--set): ",
               joined(scenario->parameters, ", ",
                      [](const NamedLiteral& parameter) { return str(parameter.name, "=", parameter.value.text()); }),
               "\n");
  }

  Explainer explainer(out);
  for (const Stage& stage : scenario->stages) {
    if (stage.name.empty()) {
      out += "\nSteps, on every rank\n";
    } else {
      out += str("\nStage ", stage.name, ", on ", stage.world_size == nullptr ? "all" : to_text(*stage.world_size),
                 " fresh ranks\n");
    }
    explainer.steps(stage.steps, 0);
  }
  out += "\nIt fails when\n";
  for (const Stage& stage : scenario->stages) explainer.failures(stage.steps);
  const bool has_library_sums =
      cases.empty() ? scenario->sum_order == SumOrder::library : cases.front().sum_order == SumOrder::library;
  if (scenario->bits == Bits::required)
    out += has_library_sums ? "  - float32 values that are compared are beyond the tolerance of sums in another order\n"
                            : "  - float32 values that are compared do not agree in every bit\n";
  out +=
      "  - a step fails, a rank ends, ranks disagree about a collective, two accesses to memory are not ordered, or "
      "the "
      "case takes longer than " +
      str(cases.empty() ? scenario->timeout : cases.front().timeout, " s\n");
  out += "It is INVALID when no check gathers evidence, or when a check is never reached.\n";
  return out;
}

}  // namespace lockstep::scenario
