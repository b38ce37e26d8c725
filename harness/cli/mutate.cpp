#include "harness/cli/mutate.hpp"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "harness/cli/case_order.hpp"
#include "harness/cli/step_mutants.hpp"
#include "harness/report/target.hpp"
#include "harness/report/text.hpp"
#include "harness/run/trace/foresight.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::cli {

namespace {

using ScenarioPtr = std::shared_ptr<const scenario::Scenario>;

enum class Sight { noticed, unnoticed, excused, excused_but_noticed, not_read };

const char* word_for(Sight sight) {
  switch (sight) {
    case Sight::noticed:
      return "noticed";
    case Sight::unnoticed:
      return "UNNOTICED";
    case Sight::excused:
      return "excused";
    case Sight::excused_but_noticed:
      return "NOT EXCUSED";
    case Sight::not_read:
      return "NOT READ";
  }
  return "";
}

bool is_right(Sight sight) { return sight == Sight::noticed || sight == Sight::excused; }

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(str("cannot read ", path), "keep the scenario where it is until the command ends");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What saw the absence of a step: a check, a status, or the reader of the scenario. Empty: nothing.
struct Judgement {
  std::string seen_by{};
  std::string case_id{};  // of the case whose result shows it; empty: none ran
  bool interrupted = false;
};

// One call of mutate().
class Mutation {
 public:
  Mutation(scenario::Library& library, const MutateOptions& options) : library_(library), options_(options) {
    if (options.results_file.empty()) return;
    report::check_target(options.results_file);
    rows_.open(options.results_file);
    if (!rows_) throw Error(str("cannot write ", options.results_file), "name a file in a folder that exists");
  }

  // Returns false when the run was interrupted.
  bool run(const ScenarioPtr& scenario, const std::map<std::string, scenario::Case>& cases) {
    const std::string text = content_of(scenario->path);
    std::set<std::string> passing;  // the cases that have run as they are
    for (const FeatureStep& step : feature_steps(*scenario)) {
      const std::string changed = without_step(text, step);
      Judgement judged;
      if (!changed.empty()) judged = judge_text(*scenario, changed, cases);
      if (judged.interrupted) return false;
      if (!judged.case_id.empty() && passing.insert(judged.case_id).second) {
        const Judgement as_it_is = judge({cases.at(judged.case_id)});
        if (as_it_is.interrupted) return false;
        if (!as_it_is.seen_by.empty()) {
          fmt::print("{:<12} {} does not pass as it is ({})\n", "FAILS", printable_line(scenario->name),
                     as_it_is.seen_by);
          ++num_failing_;
          return true;
        }
      }
      report(*scenario, step, changed.empty() ? Sight::not_read : sight_of(step, judged), judged.seen_by);
    }
    return true;
  }

  int summarize() const {
    fmt::print("{} left out: {} noticed, {} excused, {} unnoticed, {} wrongly excused, {} not read\n",
               report::plural(num_steps_, "step"), count(Sight::noticed), count(Sight::excused),
               count(Sight::unnoticed), count(Sight::excused_but_noticed), count(Sight::not_read));
    return num_failing_ == 0 && num_wrong_ == 0 && num_steps_ > 0 ? 0 : 1;
  }

 private:
  static Sight sight_of(const FeatureStep& step, const Judgement& judged) {
    if (step.reason.empty()) return judged.seen_by.empty() ? Sight::unnoticed : Sight::noticed;
    return judged.seen_by.empty() ? Sight::excused : Sight::excused_but_noticed;
  }

  Judgement judge_text(const scenario::Scenario& scenario, const std::string& text,
                       const std::map<std::string, scenario::Case>& as_they_are) {
    try {
      const ScenarioPtr changed = library_.load_as(text, scenario.path);
      std::vector<scenario::Case> cases;
      std::set<std::string> seen;
      for (scenario::ExpandOptions expand : options_.expand) {
        expand.set = as_they_are.begin()->second.set;  // those of its own parameters
        for (scenario::Case& one : scenario::expand(changed, expand))
          if (!one.skip && !one.unsupported && as_they_are.contains(one.id) && seen.insert(one.id).second)
            cases.push_back(std::move(one));
      }
      LOCKSTEP_CHECK(!cases.empty(), "a step left out leaves no case of ", scenario.name);
      scenario::Diagnostics wrong;
      run::check_before_launch(cases, wrong);
      if (!wrong.empty()) return {.seen_by = "refused before launch"};
      return judge(cases);
    } catch (const scenario::ScenarioError&) {
      return {.seen_by = "refused"};
    }
  }

  // Runs the cases until one has an unexpected result.
  Judgement judge(const std::vector<scenario::Case>& cases) {
    Judgement judged;
    RunCasesOptions run = options_.run;
    run.enough = [](const verdict::CaseResult& row) { return verdict::is_unexpected(row.status); };
    const RunCasesOutcome outcome =
        run_cases(library_, one_per_scenario_in_turn(cases), run, [&](const verdict::CaseResult& row) {
          if (!judged.seen_by.empty() || !verdict::is_unexpected(row.status)) return;
          judged.seen_by = row.failure ? row.failure->check : std::string(verdict::name_of(row.status));
          if (judged.seen_by.empty()) judged.seen_by = std::string(verdict::name_of(row.status));
          judged.case_id = row.case_id;
        });
    if (!outcome.machine_error.empty()) throw ResourceError(outcome.machine_error);
    judged.interrupted = outcome.interrupted;
    return judged;
  }

  void report(const scenario::Scenario& scenario, const FeatureStep& step, Sight sight, const std::string& seen_by) {
    ++num_steps_;
    ++counts_[static_cast<std::size_t>(sight)];
    if (!is_right(sight)) ++num_wrong_;
    const std::string verb(scenario::spec_of(step.verb).name);
    if (!is_right(sight)) {
      fmt::print("{:<12} {}:{} {}{}\n", word_for(sight), printable_line(scenario.file), step.place.line, verb,
                 seen_by.empty() ? std::string() : str(" (", seen_by, ")"));
      std::fflush(stdout);
    }
    if (options_.results_file.empty()) return;
    const nlohmann::ordered_json row = {{"kind", "step"},       {"scenario", scenario.name}, {"line", step.place.line},
                                        {"verb", verb},         {"sight", word_for(sight)},  {"seen_by", seen_by},
                                        {"reason", step.reason}};
    errno = 0;
    rows_ << row.dump() << '\n' << std::flush;
    if (!rows_) throw resource_error(str("writing ", options_.results_file), errno != 0 ? errno : EIO);
  }

  int count(Sight sight) const { return counts_[static_cast<std::size_t>(sight)]; }

  scenario::Library& library_;
  const MutateOptions& options_;
  std::ofstream rows_;
  int counts_[5] = {};  // by Sight
  int num_steps_ = 0, num_wrong_ = 0, num_failing_ = 0;
};

}  // namespace

int mutate(scenario::Library& library, const std::vector<scenario::Case>& cases, const MutateOptions& options) {
  // A scenario may have been read once per device.
  std::vector<ScenarioPtr> scenarios;
  std::map<std::string, std::map<std::string, scenario::Case>> cases_of;  // by path and id
  for (const scenario::Case& one : cases) {
    if (one.skip || one.unsupported) continue;
    if (!cases_of.contains(one.scenario->path)) scenarios.push_back(one.scenario);
    cases_of[one.scenario->path].emplace(one.id, one);
  }
  Mutation mutation(library, options);
  for (const ScenarioPtr& scenario : scenarios) {
    if (!mutation.run(scenario, cases_of[scenario->path])) return 130;
  }
  return mutation.summarize();
}

}  // namespace lockstep::cli
