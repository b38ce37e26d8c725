#include "harness/cli/kill_matrix.hpp"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/defects.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "harness/cli/case_order.hpp"
#include "harness/cli/case_relevance.hpp"
#include "harness/cli/defect_catch.hpp"
#include "harness/cli/defect_questions.hpp"
#include "harness/cli/earlier_catches.hpp"
#include "harness/report/target.hpp"
#include "harness/report/text.hpp"

namespace lockstep::cli {

namespace {

class ArmedDefect {
 public:
  explicit ArmedDefect(Defect defect) { arm_defect(defect); }
  ~ArmedDefect() { arm_defect(Defect::none); }
  ArmedDefect(const ArmedDefect&) = delete;
  ArmedDefect& operator=(const ArmedDefect&) = delete;
};

// The results file: one line per defect, flushed as it is written. Without a path it writes nothing.
class DefectRows {
 public:
  explicit DefectRows(const std::string& path) : path_(path) {
    if (path.empty()) return;
    report::check_target(path);
    file_.open(path);
    if (!file_) throw Error(str("cannot write ", path), "name a file in a folder that exists");
  }
  void write(const DefectInfo& info, const DefectTally& tally) {
    if (path_.empty()) return;
    nlohmann::ordered_json row = {{"kind", "defect"}, {"name", info.name}, {"place", info.place}};
    row["caught_by"] = nlohmann::ordered_json::array();
    for (const Catch& one : tally.catches())
      row["caught_by"].push_back({{"scenario", one.scenario}, {"check", one.check}, {"case", one.case_id}});
    errno = 0;
    file_ << row.dump() << '\n' << std::flush;
    if (!file_) throw resource_error(str("writing ", path_), errno != 0 ? errno : EIO);
  }

 private:
  std::string path_;
  std::ofstream file_;
};

void print_line(const DefectInfo& info, const DefectTally& tally, int num_reaching) {
  std::string more;
  if (tally.caught())
    more = str("; first: ", tally.catches().begin()->scenario, " (", tally.catches().begin()->check, ")");
  else
    more = str("; ", report::plural(num_reaching, "case"), num_reaching == 1 ? " reaches" : " reach", " its point");
  fmt::print("{:<8} {:<42} {:<8} {} of its kind and {} in {}{}\n", tally.caught() ? "caught" : "MISSED", info.name,
             name_of(info.kind), report::plural(std::ssize(tally.catches()), "check"),
             report::plural(std::ssize(tally.others()), "other"), report::plural(tally.num_run(), "case"), more);
  std::fflush(stdout);
}

// One call of kill_matrix(). Both run functions return false when the run was interrupted.
class Matrix {
 public:
  Matrix(scenario::Library& library, const std::vector<scenario::Case>& cases, const KillMatrixOptions& options)
      : library_(library),
        options_(options),
        earlier_(options.earlier_results.empty() ? EarlierCatches() : read_earlier_catches(options.earlier_results)),
        rows_(options.results_file),
        cases_(one_per_scenario_in_turn(cases)),
        relevance_(cases_),
        questions_(cases_) {
    for (const scenario::Case& one : cases_) case_of_[{one.scenario->name, one.id}] = &one;
  }

  bool run_under(const DefectInfo& info) {
    const ArmedDefect armed(info.defect);
    DefectTally tally(info.kind);
    RunCasesOptions run = options_.run;
    run.repro_suffix = str(" --defect ", info.name);
    // run_cases() asks `enough` before it hands over the row, so the row after the first catch ends the run.
    if (!options_.all) run.enough = [&](const verdict::CaseResult&) { return tally.caught(); };
    run.before_ranks = [this](const scenario::Case& one) { questions_.begin(one); };
    const auto judge = [&](const verdict::CaseResult& row) {
      const scenario::Case* test_case = case_of_.at({row.scenario, row.case_id});
      questions_.end(*test_case, row, info.defect);
      const bool counts = options_.all || !tally.caught();
      if (tally.add(row, *test_case) && counts) ++num_catches_[test_case];
    };
    if (!options_.all && !run_all(that_caught_before(info), run, judge)) return false;
    if (!tally.caught() && !run_all(ordered_for(info), run, judge)) return false;
    ++num_asked_;
    num_caught_ += tally.caught() ? 1 : 0;
    print_line(info, tally, questions_.num_reaching(info.defect));
    rows_.write(info, tally);
    return true;
  }

  // The cases that caught a defect must pass without one.
  bool run_without_defect() {
    std::vector<scenario::Case> cases;
    for (const scenario::Case& one : cases_)
      if (options_.all || num_catches_.contains(&one)) cases.push_back(one);
    num_without_ = std::ssize(cases);
    return run_all(cases, options_.run, [&](const verdict::CaseResult& row) {
      if (!verdict::is_unexpected(row.status)) return;
      clean_ = false;
      fmt::print("without a defect: {} {}: {}\n", verdict::name_of(row.status),
                 printable_line(str(row.scenario, " [", row.case_id, "]")),
                 printable(row.failure ? row.failure->message : row.reason));
    });
  }

  int summarize() const {
    fmt::print("{} of {} caught; the run of {} without a defect is {}\n", num_caught_,
               report::plural(num_asked_, "defect"), report::plural(num_without_, "case"),
               clean_ ? "clean" : "NOT clean");
    return clean_ && num_caught_ == num_asked_ && num_asked_ > 0 ? 0 : 1;
  }

 private:
  std::vector<scenario::Case> that_caught_before(const DefectInfo& info) const {
    std::vector<scenario::Case> cases;
    const auto earlier = earlier_.find(info.name);
    if (earlier == earlier_.end()) return cases;
    for (const auto& key : earlier->second)
      if (const auto known = case_of_.find(key); known != case_of_.end()) cases.push_back(*known->second);
    return cases;
  }

  std::vector<scenario::Case> ordered_for(const DefectInfo& info) const {
    const auto scores = relevance_.scores(str(info.name, " ", info.effect));
    return questions_.unreaching_last(likely_catchers_first(cases_, num_catches_, scores), info.defect);
  }

  bool run_all(const std::vector<scenario::Case>& cases, const RunCasesOptions& run,
               const std::function<void(const verdict::CaseResult&)>& on_result) {
    const RunCasesOutcome outcome = run_cases(library_, cases, run, on_result);
    if (outcome.interrupted) return false;
    if (!outcome.machine_error.empty()) throw ResourceError(outcome.machine_error);
    return true;
  }

  scenario::Library& library_;
  const KillMatrixOptions& options_;
  const EarlierCatches earlier_;  // read before `rows_` opens its file, which may be the same one
  DefectRows rows_;
  const std::vector<scenario::Case> cases_;
  const CaseRelevance relevance_;
  DefectQuestions questions_;
  std::map<std::pair<std::string, std::string>, const scenario::Case*> case_of_;  // by scenario and case id
  std::map<const scenario::Case*, int> num_catches_;
  int num_asked_ = 0, num_caught_ = 0;
  std::int64_t num_without_ = 0;
  bool clean_ = true;
};

}  // namespace

int kill_matrix(scenario::Library& library, const std::vector<scenario::Case>& cases,
                const KillMatrixOptions& options) {
  std::set<Defect> asked;
  for (const std::string& name : options.defects) asked.insert(defect_from_name(name));
  Matrix matrix(library, cases, options);
  for (int i = 0; i < num_defects(); ++i) {
    const DefectInfo& info = defect_table()[i];
    if ((asked.empty() || asked.contains(info.defect)) && !matrix.run_under(info)) return 130;
  }
  if (!matrix.run_without_defect()) return 130;
  return matrix.summarize();
}

}  // namespace lockstep::cli
