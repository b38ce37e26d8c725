#include "harness/cli/stage_launch.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "harness/cli/case_limits.hpp"

namespace lockstep::cli {

namespace {

double deadline_of(const scenario::Case& test_case, const RunCasesOptions& options) {
  return test_case.deadline.value_or(options.collective_deadline);
}

}  // namespace

run::CaseSpec spec_of(const scenario::Library& library, const scenario::Case& test_case, int ticket,
                      const std::string& case_folder, const RunCasesOptions& options) {
  run::CaseSpec spec{.scenario = test_case.scenario.get(),
                     .test_case = &test_case,
                     .library = &library,
                     .case_folder = case_folder,
                     .order_check = options.order_check,
                     .collective_deadline_seconds = deadline_of(test_case, options),
                     .limits = limits_of(test_case)};
  if (!options.trace_folder.empty())
    spec.trace_bits = (std::filesystem::path(options.trace_folder) / str("case-", ticket + 1)).string();
  if (!options.timeline_folder.empty())
    spec.timeline =
        (std::filesystem::absolute(options.timeline_folder) / str("timeline-", ticket + 1)).lexically_normal().string();
  return spec;
}

namespace {

launch::RankFunction function_of(run::CaseSpec spec, std::size_t stage, const RunCasesOptions& options,
                                 run::PlanBoards& plans) {
  if (!options.each_rank_plans) spec.plans = plans.of(spec.test_case->scenario);
  return [spec = std::move(spec), stage, before = options.before_ranks](int rank) {
    if (before) before(*spec.test_case);
    return run::run_case(spec, rank, stage);
  };
}

StageCommand command_from_text(const std::string& text) {
  std::istringstream words(text);
  words.exceptions(std::ios_base::badbit);  // otherwise the stream keeps to itself that memory was refused
  StageCommand command;
  words >> command.ticket >> command.stage >> command.seconds_before;
  const bool has_folder = words.get() == ' ';
  LOCKSTEP_CHECK(has_folder && command.ticket >= 0, "the command of a stage: ", text);
  command.folder = text.substr(static_cast<std::size_t>(words.tellg()));  // it may contain spaces and newlines
  return command;
}

}  // namespace

std::string to_text(const StageCommand& command) {
  return str(command.ticket, " ", command.stage, " ", command.seconds_before, " ", command.folder);
}

void start_stage(launch::Pool& pool, int ticket, const run::CaseSpec& spec, std::size_t stage,
                 const RunCasesOptions& options, run::PlanBoards& plans,
                 const std::shared_ptr<launch::RunSchedule>& schedule, const launch::SeriesFunction& series,
                 double seconds_before) {
  const scenario::Case& test_case = *spec.test_case;
  launch::LaunchOptions how;
  how.world_size = stage < test_case.stages.size() ? test_case.stages[stage].world_size : test_case.world_size;
  how.launch = test_case.launch == scenario::Launch::process ? launch::Launch::process : launch::Launch::thread;
  how.timeout_seconds = std::max(test_case.timeout - seconds_before, 0.001);
  how.collective_deadline_seconds = deadline_of(test_case, options);
  how.memory_bytes = spec.limits.memory_bytes;
  how.num_ranks_at_once = ranks_at_once(test_case, options.jobs);
  how.hosts = options.hosts;
  how.schedule = schedule;
  // A seeded defect, or the function before the ranks, may change the state of the process.
  const bool can_share = how.launch == launch::Launch::thread && how.hosts == nullptr && schedule == nullptr &&
                         armed_defect() == Defect::none && !options.before_ranks;
  if (series && can_share) return pool.start_in_series(ticket, how, to_text({ticket, stage, spec.case_folder}), series);
  pool.start(ticket, how, function_of(spec, stage, options, plans));
}

launch::SeriesFunction series_of(const scenario::Library& library, const std::vector<scenario::Case>& cases,
                                 const RunCasesOptions& options) {
  // Each process makes its own boards, for the scenarios whose cases it runs.
  auto plans = std::make_shared<run::PlanBoards>();
  return [&library, &cases, &options, plans](const std::string& request) {
    const StageCommand command = command_from_text(request);
    const scenario::Case& test_case = cases.at(static_cast<std::size_t>(command.ticket));
    return function_of(spec_of(library, test_case, command.ticket, command.folder, options), command.stage, options,
                       *plans);
  };
}

void command_stage(launch::Hosts& hosts, const StageCommand& command) {
  hosts.send_to_others(launch::Topic::command, hosts.next_command(), to_text(command));
}

std::optional<StageCommand> take_command(launch::Hosts& hosts, std::uint64_t number) {
  const std::optional<std::string> text = hosts.take(0, launch::Topic::command, number);
  if (!text) return {};
  return command_from_text(*text);
}

}  // namespace lockstep::cli
