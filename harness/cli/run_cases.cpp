#include "harness/cli/run_cases.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/comm/recorder.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/cuda/stand_in.hpp"
#include "engine/device/device.hpp"
#include "harness/cli/case_limits.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/schedule_file.hpp"
#include "harness/cli/stage_launch.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/launch/huge_pages.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/launch/run_folder.hpp"
#include "harness/report/dumps.hpp"
#include "harness/report/timeline.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/run/observe/recording.hpp"
#include "harness/run/trace/plan_board.hpp"
#include "harness/scenario/source_lines.hpp"
#include "harness/scenario/vocabulary.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::cli {

namespace {

// The part of the environment that decides where the case runs: "LOCKSTEP_CUDA=stand-in:4 ".
std::string environment_of(const scenario::Case& test_case) {
  using namespace device::cuda;
  const int gpus = test_case.device == device::name_of(device::Kind::cuda) ? gpus_of_stand_in() : 0;
  return gpus > 0 ? str(stand_in_variable, "=", stand_in_setting(gpus), " ") : "";
}

verdict::CaseResult blank_row(const scenario::Case& test_case, const RunCasesOptions& options) {
  verdict::CaseResult row;
  row.scenario = test_case.scenario->name;
  row.file = test_case.scenario->file;
  row.case_id = test_case.id;
  if (test_case.scenario->mirrors) row.mirrors = test_case.scenario->mirrors->number;
  row.params = test_case.params_json();
  row.world_size = test_case.world_size;
  row.launch = std::string(scenario::name_of(test_case.launch));
  row.device = test_case.device;
  if (test_case.sum_order != scenario::SumOrder::fixed) row.sum_order = name_of(test_case.sum_order);
  row.repro = environment_of(test_case) + test_case.repro() + options.repro_suffix;
  return row;
}

// A case that runs. Its stages run one after the other, each with new ranks; its folder exists until the last has
// ended.
struct Running {
  const scenario::Case* test_case = nullptr;
  run::CaseSpec spec;
  std::unique_ptr<launch::CaseFolder> folder;
  std::unique_ptr<CaseSchedules> schedules;  // null: the machine decides who runs
  int num_runs = 0;
  verdict::CaseResult row;
  std::vector<verdict::StageOutcomes> stages;
  std::vector<comm::RankHistory> stories;
  std::size_t next_stage = 0;
};

void start_stage(launch::Pool& pool, int ticket, Running& running, const RunCasesOptions& options,
                 run::PlanBoards& plans, const launch::SeriesFunction& series) {
  const std::size_t stage = running.next_stage++;
  if (options.hosts != nullptr)
    command_stage(*options.hosts, {ticket, stage, running.folder->path(), running.row.seconds});
  start_stage(pool, ticket, running.spec, stage, options, plans,
              running.schedules ? running.schedules->current() : std::shared_ptr<launch::RunSchedule>(), series,
              running.row.seconds);
}

bool all_well(const std::vector<verdict::RankOutcome>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const verdict::RankOutcome& outcome) {
    return outcome.status == verdict::RankStatus::finished ||
           (outcome.end_expected && outcome.status != verdict::RankStatus::hung);
  });
}

// Joins the timelines of the ranks into one file and returns its path, relative to the results file where it is below
// its folder, so that both can be moved together.
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

// The error of a rank to which the machine refused something, or whose host was lost; empty when there is none.
std::string machine_error_of(const std::vector<verdict::RankOutcome>& ranks) {
  for (const verdict::RankOutcome& outcome : ranks)
    if (outcome.status == verdict::RankStatus::never_started || outcome.status == verdict::RankStatus::lost)
      return outcome.detail;
  return "";
}

// One call of run_cases().
class Runner {
 public:
  Runner(scenario::Library& library, const RunCasesOptions& options,
         const std::function<void(const verdict::CaseResult&)>& on_result)
      : library_(library), options_(options), on_result_(on_result), pool_(options.jobs) {}

  RunCasesOutcome run(const std::vector<scenario::Case>& cases) {
    try {
      folder_.emplace();
    } catch (const ResourceError& error) {
      stop_for(error);
    }
    if (!options_.process_per_case) series_ = series_of(library_, cases, options_);
    launch::move_heap_to_huge_pages();
    for (std::size_t i = 0; i < cases.size(); ++i) begin(cases[i], static_cast<int>(i));
    while (!running_.empty()) collect_one();
    is_interrupted();
    outcome_.interrupted = interrupted();
    return std::move(outcome_);
  }

 private:
  // A signal to another host ends the run like one to this process.
  bool is_interrupted() const {
    if (options_.hosts != nullptr && !interrupted())
      if (const int signal = options_.hosts->interrupt()) note_interrupt(signal);
    return interrupted();
  }

  void begin(const scenario::Case& test_case, int ticket) {
    const bool runs = !test_case.skip && !test_case.unsupported;
    while (runs && !has_room_on_gpu(test_case)) collect_one();  // a collected case may stop the run
    verdict::CaseResult row = blank_row(test_case, options_);
    if (!stop_reason_.empty() || is_interrupted()) {
      row.status = verdict::Status::MISSING;
      row.reason = interrupted() ? interruption() : stop_reason_;
      return finish(std::move(row));
    }
    if (test_case.skip || test_case.unsupported) {
      row.status = test_case.unsupported ? verdict::Status::UNSUPPORTED : verdict::Status::SKIP;
      row.reason = test_case.unsupported ? *test_case.unsupported : *test_case.skip;
      return finish(std::move(row));
    }
    Running& one = running_[ticket];
    one.test_case = &test_case;
    one.row = std::move(row);
    start_run(ticket, one);
    while (pool_.full()) collect_one();
  }

  bool has_room_on_gpu(const scenario::Case& test_case) const {
    const int at_once = ranks_at_once(test_case, options_.jobs);
    if (at_once == 0) return true;
    int num_ranks = most_ranks_of(test_case);
    for (const auto& [ticket, one] : running_)
      if (one.test_case->device == test_case.device) num_ranks += most_ranks_of(*one.test_case);
    return num_ranks <= at_once;
  }

  // Starts the case, or starts it again under its next schedule. If the machine refuses that, the case ends, with the
  // failure of an earlier schedule if there is one.
  void start_run(int ticket, Running& one) {
    try {
      if (options_.schedule.is_on() && !one.schedules)
        one.schedules = std::make_unique<CaseSchedules>(options_.schedule);
      const std::string again = one.num_runs++ > 0 ? str("-", one.num_runs) : std::string();
      one.folder = nullptr;
      one.folder = std::make_unique<launch::CaseFolder>(*folder_, str("case-", ticket + 1, again));
      one.spec = spec_of(library_, *one.test_case, ticket, one.folder->path(), options_);
      one.stages.clear();
      one.next_stage = 0;
      start_stage(pool_, ticket, one, options_, plans_, series_);
    } catch (const ResourceError& error) {
      stop_for(error);
      one.row.status = verdict::Status::MISSING;
      one.row.reason = stop_reason_;
      if (one.schedules && one.schedules->has_failed()) {
        conclude_schedules(one);
        keep_evidence(one);
      }
      finish_ticket(ticket);
    }
  }

  void collect_one() {
    launch::Pool::Finished finished = pool_.next([this] { return is_interrupted(); });
    Running& one = running_.at(finished.ticket);
    const std::size_t stage = one.next_stage - 1;
    const auto& stages = one.test_case->stages;
    const bool well = all_well(finished.result.outcomes);
    const std::string machine_error = machine_error_of(finished.result.outcomes);
    one.row.seconds += finished.result.seconds;
    one.stages.push_back(
        {stage < stages.size() ? stages[stage].name : std::string(), std::move(finished.result.outcomes)});
    one.stories = std::move(finished.result.stories);
    if (well && !interrupted() && one.next_stage < stages.size())
      return start_stage(pool_, finished.ticket, one, options_, plans_, series_);
    if (interrupted()) {
      one.row.status = verdict::Status::MISSING;
      one.row.reason = interruption();
    } else {
      one.row = verdict::judge(std::move(one.row), run::expectation_of(one.spec), one.stages, explanation_of(one));
    }
    if (!machine_error.empty() && !interrupted()) {
      stop_for(ResourceError(machine_error));
      one.stories.clear();  // they only show that ranks are missing
    }
    // A host without ranks in this case may be lost too.
    if (options_.hosts != nullptr && options_.hosts->any_lost() && !is_interrupted())
      stop_for(ResourceError(options_.hosts->why_lost()));
    if (one.schedules && machine_error.empty() && !interrupted()) {
      if (one.schedules->goes_on(one.row) && (stop_reason_.empty() || one.schedules->has_failed())) {
        one.row = blank_row(*one.test_case, options_);
        return start_run(finished.ticket, one);
      }
      conclude_schedules(one);
    }
    remove_unfinished_recordings(one);
    keep_evidence(one);
    keep_files(one, finished.ticket);
    finish_ticket(finished.ticket);
  }

  // The flight recorder's explanation of the case; empty unless the scenario states one.
  static std::string explanation_of(const Running& one) {
    const std::optional<scenario::ExpectedFailure>& expected = one.test_case->expect_failure;
    return expected && !expected->flight_recorder.empty() ? comm::explain(one.stories) : std::string();
  }

  // The row of a case under schedules. A schedule that fails is written to a file, which `repro` names.
  void conclude_schedules(Running& one) {
    one.row = one.schedules->result();
    if (!one.schedules->has_failed()) {
      if (one.row.reason.empty()) one.row.reason = one.schedules->text();
      return;
    }
    try {
      const std::string path = write_schedule(options_.schedule.folder, ++num_schedules_, schedule_file_of(one));
      one.row.repro = str("lockstep run --schedule ", scenario::shell_quoted("replay:" + path));
    } catch (const Error& error) {  // `repro` repeats the search
      stop_for(ResourceError(error.message(), error.remedy()));
    }
    if (one.row.failure) one.row.failure->also.insert(one.row.failure->also.begin(), one.schedules->text());
  }

  ScheduleFile schedule_file_of(const Running& one) const {
    ScheduleFile file;
    const scenario::Scenario& of = *one.test_case->scenario;
    file.scenario = of.call.empty() ? of.name : of.call;
    file.case_id = one.row.case_id;
    file.set = one.test_case->set;
    if (armed_defect() != Defect::none)
      file.defect = std::string(defect_table()[static_cast<int>(armed_defect()) - 1].name);
    file.order_check = options_.order_check;
    if (one.test_case->overrides.find(" --world-size ") != std::string::npos)
      file.world_size = one.test_case->world_size;
    if (one.test_case->timeout != of.timeout) file.timeout = one.test_case->timeout;
    if (options_.collective_deadline != RunCasesOptions().collective_deadline)
      file.deadline = options_.collective_deadline;
    if (one.test_case->memory_mb != of.memory_mb) file.memory_mb = one.test_case->memory_mb;
    if (one.test_case->output_mb != of.output_mb.value_or(scenario::limits::output_mb))
      file.output_mb = one.test_case->output_mb;
    file.found_by = one.schedules->found_by();
    if (one.row.failure) file.check = str(one.row.failure->check, ": ", one.row.failure->message);
    file.switches = one.schedules->switches();
    return file;
  }

  // Ranks that ended while they wrote have left unfinished files.
  void remove_unfinished_recordings(const Running& one) {
    for (const std::string* prefix : {&one.spec.trace_bits, &one.spec.timeline})
      for (std::size_t stage = 0; !prefix->empty() && stage < one.stages.size(); ++stage)
        for (std::size_t rank = 0; rank < one.stages[stage].ranks.size(); ++rank)
          run::remove_unfinished_recording(run::recording_path(*prefix, stage, static_cast<int>(rank)));
  }

  // Keeps the timeline, the flight recorder dump and the lines of the failed step. The verdict does not depend on them.
  void keep_evidence(Running& one) {
    if (one.row.failure && verdict::is_unexpected(one.row.status)) {
      verdict::Failure& failure = *one.row.failure;
      // Places name the files of the library with the name of its folder: "scenarios/a.yaml".
      const std::filesystem::path parent = std::filesystem::weakly_canonical(library_.root()).parent_path();
      failure.source = scenario::step_lines(parent.string(), {failure.file, failure.line, failure.column});
    }
    try {
      one.row.timeline = joined_timeline(one, options_);
      const bool ended_badly = one.row.status == verdict::Status::HANG || one.row.status == verdict::Status::CRASH;
      if (ended_badly && one.row.failure && !one.stories.empty())
        one.row.failure->also.push_back(comm::explain(one.stories));
      if (!options_.dump_folder.empty() && verdict::is_unexpected(one.row.status) && !one.stories.empty())
        report::write_dump(options_.dump_folder, ++num_dumps_, one.row, comm::to_text(one.stories));
    } catch (const ResourceError& error) {
      if (outcome_.machine_error.empty()) outcome_.machine_error = error.what();
    } catch (const Error& error) {
      complain(error.what());
    }
  }

  // Copies the case's folder before it is removed. A case without files gives no folder.
  void keep_files(const Running& one, int ticket) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (options_.files_folder.empty() || fs::is_empty(one.folder->path(), error)) return;
    const fs::path kept = fs::path(options_.files_folder) / str("case-", ticket + 1);
    // Copied under another name first, so that no folder with its final name is incomplete.
    const launch::TemporaryTree part(kept.string() + ".part");
    try {
      if (!error) fs::create_directories(part.path(), error);
      if (!error) fs::copy(one.folder->path(), part.path(), fs::copy_options::recursive, error);
      if (!error) fs::rename(part.path(), kept, error);
    } catch (const std::bad_alloc&) {
      error = std::make_error_code(std::errc::not_enough_memory);
    }
    if (!error) return;
    const ResourceError why = resource_error(str("keeping the files of a case in ", kept.string()), error.value());
    stop_for(why.remedy().empty() ? ResourceError(why.message(), "name another folder with --files") : why);
  }

  void finish_ticket(int ticket) {
    verdict::CaseResult row = std::move(running_.at(ticket).row);
    running_.erase(ticket);
    finish(std::move(row));
  }

  void finish(verdict::CaseResult row) {
    const bool enough = (options_.fail_fast && verdict::is_unexpected(row.status)) ||
                        (stop_reason_.empty() && options_.enough && options_.enough(row));
    if (enough && stop_reason_.empty()) stop_reason_ = "the run was stopped by an earlier case";
    try {
      on_result_(row);
    } catch (const ResourceError& error) {
      stop_for(error);
    }
    outcome_.results.push_back(std::move(row));
  }

  void stop_for(const ResourceError& error) {
    if (outcome_.machine_error.empty()) outcome_.machine_error = error.what();
    if (stop_reason_.empty()) stop_reason_ = str("the run was stopped: ", error.message());
  }

  scenario::Library& library_;
  const RunCasesOptions& options_;
  const std::function<void(const verdict::CaseResult&)>& on_result_;
  std::optional<launch::RunFolder> folder_;
  launch::Pool pool_;
  run::PlanBoards plans_;
  launch::SeriesFunction series_;
  std::map<int, Running> running_;
  std::string stop_reason_;  // empty: further cases may start
  int num_dumps_ = 0, num_schedules_ = 0;
  RunCasesOutcome outcome_;
};

}  // namespace

RunCasesOutcome run_cases(scenario::Library& library, const std::vector<scenario::Case>& cases,
                          const RunCasesOptions& options,
                          const std::function<void(const verdict::CaseResult&)>& on_result) {
  return Runner(library, options, on_result).run(cases);
}

}  // namespace lockstep::cli
