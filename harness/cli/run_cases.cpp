#include "harness/cli/run_cases.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include <fmt/core.h>
#include <unistd.h>

#include "engine/comm/recorder.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/report/timeline.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::cli {

namespace {

volatile std::sig_atomic_t interrupt_seen = 0;  // the signal that ended the run

// A folder of its own under the system's temporary folder, removed with the object.
class CaseFolder {
 public:
  CaseFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-case-XXXXXX").string();
    if (!mkdtemp(pattern.data())) {
      throw Error(str("cannot make a folder like ", pattern),
                  "free space there, or set TMPDIR to a folder that can be written");
    }
    path_ = pattern;
  }
  ~CaseFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  CaseFolder(const CaseFolder&) = delete;
  CaseFolder& operator=(const CaseFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

verdict::CaseResult blank_row(const scenario::Case& test_case, const RunCasesOptions& options) {
  verdict::CaseResult row;
  row.scenario = test_case.scenario->name;
  row.case_id = test_case.id;
  if (test_case.scenario->mirrors) row.mirrors = test_case.scenario->mirrors->number;
  row.params = test_case.params_json();
  row.world_size = test_case.world_size;
  row.launch = std::string(scenario::name_of(test_case.launch));
  row.device = test_case.device;
  row.repro = test_case.repro() + options.repro_suffix;
  return row;
}

// A case under way: its stages run one after the other, each with fresh ranks; the folder lives until the last.
struct Running {
  const scenario::Case* test_case = nullptr;
  run::CaseSpec spec;
  std::unique_ptr<CaseFolder> folder;
  verdict::CaseResult row;
  std::vector<verdict::StageOutcomes> stages;
  std::vector<comm::RankStory> stories;
  std::size_t next_stage = 0;
};

void start_stage(launch::Pool& pool, int ticket, Running& running, const RunCasesOptions& options) {
  const scenario::Case& test_case = *running.test_case;
  const std::size_t stage = running.next_stage++;
  launch::LaunchOptions how;
  how.world_size = stage < test_case.stages.size() ? test_case.stages[stage].world_size : test_case.world_size;
  how.launch = test_case.launch == scenario::Launch::process ? launch::Launch::process : launch::Launch::thread;
  how.timeout_seconds = test_case.timeout;
  how.collective_deadline_seconds = options.collective_deadline;
  const run::CaseSpec spec = running.spec;
  pool.start(ticket, how, [spec, stage](int rank) { return run::run_case(spec, rank, stage); });
}

bool all_well(const std::vector<verdict::RankOutcome>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const verdict::RankOutcome& outcome) {
    return outcome.status == verdict::RankStatus::finished || outcome.end_expected;
  });
}

// Joins what the ranks left; the row names the file so that it is found beside the results file, wherever both go.
std::string joined_timeline(const Running& running, const RunCasesOptions& options) {
  if (running.spec.timeline.empty()) return "";
  std::vector<int> world_sizes;
  for (const verdict::StageOutcomes& stage : running.stages)
    world_sizes.push_back(static_cast<int>(stage.ranks.size()));
  const std::filesystem::path file = report::join_timeline(running.spec.timeline, world_sizes);
  if (file.empty() || options.results_folder.empty()) return file.string();
  const std::filesystem::path beside =
      file.lexically_relative(std::filesystem::absolute(options.results_folder).lexically_normal());
  return beside.empty() || *beside.begin() == ".." ? file.string() : beside.string();
}

void write_dump(const Running& running, const RunCasesOptions& options, int number) {
  const std::filesystem::path folder = std::filesystem::path(options.dump_folder) / str("case-", number);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  std::ofstream(folder / "recorder.jsonl") << comm::to_text(running.stories);
  std::ofstream(folder / "case.txt") << running.row.scenario << " [" << running.row.case_id << "]\n"
                                     << running.row.repro << "\n";
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { interrupt_seen = signal; };
  sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: a wait for a case ends
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGALRM, &action, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }
bool out_of_time() { return interrupt_seen == SIGALRM; }

RunCasesOutcome run_cases(scenario::Library& library, const std::vector<scenario::Case>& cases,
                          const RunCasesOptions& options,
                          const std::function<void(const verdict::CaseResult&)>& on_result) {
  RunCasesOutcome outcome;
  launch::Pool pool(options.jobs);
  std::map<int, Running> running;
  bool stop = false;
  int num_dumps = 0;

  const auto finish = [&](verdict::CaseResult row) {
    if (options.fail_fast && verdict::is_unexpected(row.status)) stop = true;
    if (!stop && options.enough && options.enough(row)) stop = true;
    on_result(row);
    outcome.results.push_back(std::move(row));
  };
  const auto collect_one = [&] {
    launch::Pool::Finished finished = pool.next(interrupted);
    Running& one = running.at(finished.ticket);
    const std::size_t stage = one.next_stage - 1;
    const auto& stages = one.test_case->stages;
    const bool well = all_well(finished.result.outcomes);
    one.row.seconds += finished.result.seconds;
    one.stages.push_back(
        {stage < stages.size() ? stages[stage].name : std::string(), std::move(finished.result.outcomes)});
    one.stories = std::move(finished.result.stories);
    if (well && !interrupted() && one.next_stage < stages.size())
      return start_stage(pool, finished.ticket, one, options);
    if (interrupted()) {
      one.row.status = verdict::Status::MISSING;
      one.row.reason = "the run was interrupted";
    } else {
      one.row = verdict::judge(std::move(one.row), run::expectation_of(one.spec), one.stages);
    }
    try {
      one.row.timeline = joined_timeline(one, options);
    } catch (const Error& error) {
      fmt::print(stderr, "lockstep: {}\n", error.what());  // the verdict does not hang on it
    }
    const bool ended_badly = one.row.status == verdict::Status::HANG || one.row.status == verdict::Status::CRASH;
    if (ended_badly && one.row.failure && !one.stories.empty())
      one.row.failure->also.push_back(comm::explain(one.stories));
    if (!options.dump_folder.empty() && verdict::is_unexpected(one.row.status) && !one.stories.empty()) {
      write_dump(one, options, ++num_dumps);
    }
    verdict::CaseResult row = std::move(one.row);
    running.erase(finished.ticket);
    finish(std::move(row));
  };

  for (std::size_t i = 0; i < cases.size(); ++i) {
    const scenario::Case& test_case = cases[i];
    verdict::CaseResult row = blank_row(test_case, options);
    if (stop || interrupted()) {
      row.status = verdict::Status::MISSING;
      row.reason = interrupted() ? "the run was interrupted" : "the run was stopped by an earlier case";
      finish(std::move(row));
      continue;
    }
    if (test_case.skip || test_case.unsupported) {
      row.status = test_case.unsupported ? verdict::Status::UNSUPPORTED : verdict::Status::SKIP;
      row.reason = test_case.unsupported ? *test_case.unsupported : *test_case.skip;
      finish(std::move(row));
      continue;
    }
    Running& one = running[static_cast<int>(i)];
    one.test_case = &test_case;
    one.folder = std::make_unique<CaseFolder>();
    one.spec = {.scenario = test_case.scenario.get(),
                .test_case = &test_case,
                .library = &library,
                .case_folder = one.folder->path(),
                .order_check = options.order_check,
                .collective_deadline_seconds = options.collective_deadline};
    if (!options.trace_folder.empty())
      one.spec.trace_bits = (std::filesystem::path(options.trace_folder) / str("case-", i + 1)).string();
    if (!options.timeline_folder.empty())
      one.spec.timeline =
          (std::filesystem::absolute(options.timeline_folder) / str("timeline-", i + 1)).lexically_normal().string();
    one.row = std::move(row);
    start_stage(pool, static_cast<int>(i), one, options);
    while (pool.full()) collect_one();
  }
  while (!running.empty()) collect_one();
  outcome.interrupted = interrupted();
  return outcome;
}

}  // namespace lockstep::cli
