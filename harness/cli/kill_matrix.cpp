#include "harness/cli/kill_matrix.hpp"

#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/defects.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::cli {

namespace {

struct Catch {
  std::string scenario;
  std::string check;
  friend auto operator<=>(const Catch&, const Catch&) = default;
};

class ArmedDefect {
 public:
  explicit ArmedDefect(Defect defect) { arm_defect(defect); }
  ~ArmedDefect() { arm_defect(Defect::none); }
  ArmedDefect(const ArmedDefect&) = delete;
  ArmedDefect& operator=(const ArmedDefect&) = delete;
};

std::string kind_of_check(const std::string& check) {
  if (check == "expect_collectives" || check == "expect_events" || check == "plan" || check == "witness")
    return "count";
  if (check == "order" || check == "plan_order") return "order";
  if (check == "raises") return "message";
  if (check == "expect" || check.rfind("expect_", 0) == 0) return "value";
  return {};
}

// The step that stands at a line of the file, null when none does.
const scenario::Step* step_at(const scenario::Steps& steps, int line) {
  for (const scenario::Step& step : steps) {
    if (step.place.line == line) return &step;
    for (const scenario::Steps* inner : {&step.steps, &step.otherwise}) {
      if (const scenario::Step* found = step_at(*inner, line)) return found;
    }
    for (const scenario::Branch& branch : step.among) {
      if (const scenario::Step* found = step_at(branch.steps, line)) return found;
    }
  }
  return nullptr;
}
const scenario::Step* step_at(const scenario::Case& test_case, int line) {
  for (const scenario::Stage& stage : test_case.scenario->stages) {
    if (const scenario::Step* found = step_at(stage.steps, line)) return found;
  }
  return nullptr;
}

std::string kind_of_step(const scenario::Step& step) {
  if (step.raises) return kind_of_check("raises");
  // A condition on bytes reads the peak of a window, or what is in use.
  if (step.verb == scenario::Verb::expect && step.argument("that")) {
    const std::string condition = to_text(*step.argument("that"));
    if (condition.find(".peak_bytes") != std::string::npos || condition.find("memory(") != std::string::npos)
      return "memory";
  }
  return kind_of_check(std::string(scenario::name_of(step.verb)));
}

}  // namespace

bool shows_kind(const verdict::CaseResult& row, const scenario::Case& test_case, std::string_view kind) {
  // Events are compared in number and in order.
  if (kind == "order" && row.status == verdict::Status::FAIL && row.failure && row.failure->check == "expect_events")
    return true;
  if (kind_shown_by(row, test_case) == kind) return true;
  // What failed a moment later, by itself, was seen as well.
  if (row.status != verdict::Status::FAIL || !row.failure) return false;
  return std::any_of(row.failure->also_checks.begin(), row.failure->also_checks.end(),
                     [&](const std::string& check) { return kind_of_check(check) == kind; });
}

std::string kind_shown_by(const verdict::CaseResult& row, const scenario::Case& test_case) {
  // A failure that no longer comes: the check that had to find it has gone blind.
  if (row.status == verdict::Status::XPASS) {
    if (!test_case.expect_failure || !test_case.expect_failure->line) return {};
    const scenario::Step* step = step_at(test_case, *test_case.expect_failure->line);
    return step ? kind_of_step(*step) : std::string();
  }
  if (row.status != verdict::Status::FAIL || !row.failure) return {};
  // Not one inside a routine: its line is of another file.
  if (row.failure->scenario_line == row.failure->line) {
    const scenario::Step* step = step_at(test_case, row.failure->line);
    if (step && (step->raises || row.failure->check == "expect")) return kind_of_step(*step);
  }
  return kind_of_check(row.failure->check);
}

namespace {

std::vector<scenario::Case> copies(const std::vector<std::pair<int, const scenario::Case*>>& order) {
  std::vector<scenario::Case> cases;
  cases.reserve(order.size());
  for (const auto& [key, one] : order) cases.push_back(*one);
  return cases;
}

// 0 to num - 1 in an order whose beginning lies all over them: the first, the last, the middle, the middles of both
// halves, ...
std::vector<int> spread(int num) {
  std::vector<int> order;
  if (num > 0) order.push_back(0);
  if (num > 1) order.push_back(num - 1);
  std::deque<std::pair<int, int>> gaps = {{0, num - 1}};
  for (; !gaps.empty(); gaps.pop_front()) {
    const auto [low, high] = gaps.front();
    const int middle = (low + high) / 2;
    if (middle == low || middle == high) continue;
    order.push_back(middle);
    gaps.emplace_back(low, middle);
    gaps.emplace_back(middle, high);
  }
  return order;
}

// One case of every scenario, then another of every one, ...: what catches a defect comes early, whichever of a
// scenario's parameters, ranks and devices it takes.
std::vector<scenario::Case> in_turn(const std::vector<scenario::Case>& cases) {
  std::map<std::string, std::vector<const scenario::Case*>> of_scenario;
  for (const scenario::Case& one : cases)
    if (!one.skip && !one.unsupported) of_scenario[one.scenario->name].push_back(&one);
  std::vector<std::pair<int, const scenario::Case*>> order;
  for (const auto& [name, its] : of_scenario) {
    int turn = 0;
    for (int i : spread(static_cast<int>(its.size()))) order.emplace_back(turn++, its[i]);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return copies(order);
}

using Catches = std::map<const scenario::Case*, int>;  // how many defects a case caught so far

// The cases that caught earlier defects come first: one that is sharp enough for a mistake is likely to see the next.
std::vector<scenario::Case> sharpest_first(const std::vector<scenario::Case>& cases, const Catches& catches) {
  std::vector<std::pair<int, const scenario::Case*>> order;
  order.reserve(cases.size());
  for (const scenario::Case& one : cases) order.emplace_back(catches.contains(&one) ? catches.at(&one) : 0, &one);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return copies(order);
}

}  // namespace

int kill_matrix(scenario::Library& library, const std::vector<scenario::Case>& given,
                const KillMatrixOptions& options) {
  std::ofstream results;
  if (!options.results_file.empty()) {
    results.open(options.results_file);
    if (!results) throw Error(str("cannot write ", options.results_file), "name a file in a folder that exists");
  }
  const std::vector<scenario::Case> cases = in_turn(given);
  std::map<std::pair<std::string, std::string>, const scenario::Case*> case_of;
  for (const scenario::Case& one : cases) case_of[{one.scenario->name, one.id}] = &one;
  Catches catches;

  int num_caught = 0, num_asked = 0;
  for (int i = 0; i < num_defects(); ++i) {
    const DefectInfo& info = defect_table()[i];
    const std::string name(info.name);
    if (!options.defects.empty() &&
        std::find(options.defects.begin(), options.defects.end(), name) == options.defects.end())
      continue;
    ++num_asked;
    const ArmedDefect armed(info.defect);
    RunCasesOptions run = options.run;
    run.repro_suffix = " --defect " + name;
    std::set<Catch> caught, others;
    int num_run = 0;
    const auto look = [&](const verdict::CaseResult& row) {
      if (row.status == verdict::Status::MISSING) return;
      ++num_run;
      if (!verdict::is_unexpected(row.status)) return;
      const scenario::Case* test_case = case_of.at({row.scenario, row.case_id});
      const bool of_its_kind = shows_kind(row, *test_case, name_of(info.kind));
      if (of_its_kind && (options.all || caught.empty())) ++catches[test_case];
      const std::string check = row.failure ? row.failure->check : std::string(verdict::name_of(row.status));
      (of_its_kind ? caught : others).insert({row.scenario, check});
    };
    if (!options.all) run.enough = [&](const verdict::CaseResult&) { return !caught.empty(); };
    // `enough` is asked before the row is handed over, so that it holds from the next row on.
    const RunCasesOutcome outcome = run_cases(library, sharpest_first(cases, catches), run, look);
    if (outcome.interrupted) return 130;
    if (!outcome.machine_error.empty()) throw ResourceError(outcome.machine_error);
    num_caught += caught.empty() ? 0 : 1;
    fmt::print(
        "{:<8} {:<42} {:<8} {} check(s) of its kind and {} other(s) in {} cases{}\n",
        caught.empty() ? "MISSED" : "caught", name, name_of(info.kind), caught.size(), others.size(), num_run,
        caught.empty() ? std::string() : str("; first: ", caught.begin()->scenario, " (", caught.begin()->check, ")"));
    std::fflush(stdout);
    if (results) {
      nlohmann::ordered_json row = {{"kind", "defect"}, {"name", name}, {"place", info.place}};
      row["caught_by"] = nlohmann::ordered_json::array();
      for (const Catch& one : caught) row["caught_by"].push_back({{"scenario", one.scenario}, {"check", one.check}});
      errno = 0;
      results << row.dump() << '\n' << std::flush;
      if (!results) throw resource_error(str("writing ", options.results_file), errno != 0 ? errno : EIO);
    }
  }

  // What caught a defect must hold without it.
  std::vector<scenario::Case> without;
  for (const scenario::Case& one : cases)
    if (options.all || catches.contains(&one)) without.push_back(one);
  bool clean = true;
  const RunCasesOutcome plain = run_cases(library, without, options.run, [&](const verdict::CaseResult& row) {
    if (!verdict::is_unexpected(row.status)) return;
    clean = false;
    fmt::print("without any defect: {} {}: {}\n", verdict::name_of(row.status),
               printable_line(str(row.scenario, " [", row.case_id, "]")),
               printable(row.failure ? row.failure->message : row.reason));
  });
  if (plain.interrupted) return 130;
  if (!plain.machine_error.empty()) throw ResourceError(plain.machine_error);
  fmt::print("{} of {} defects caught; the run of {} cases without any is {}\n", num_caught, num_asked, without.size(),
             clean ? "clean" : "NOT clean");
  return clean && num_caught == num_asked && num_asked > 0 ? 0 : 1;
}

}  // namespace lockstep::cli
