#include "harness/cli/stage_launch.hpp"

#include <filesystem>
#include <memory>
#include <sstream>

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

void start_stage(launch::Pool& pool, int ticket, const run::CaseSpec& spec, std::size_t stage,
                 const RunCasesOptions& options, run::PlanBoards& plans,
                 const std::shared_ptr<launch::RunSchedule>& schedule) {
  const scenario::Case& test_case = *spec.test_case;
  launch::LaunchOptions how;
  how.world_size = stage < test_case.stages.size() ? test_case.stages[stage].world_size : test_case.world_size;
  how.launch = test_case.launch == scenario::Launch::process ? launch::Launch::process : launch::Launch::thread;
  how.timeout_seconds = test_case.timeout;
  how.collective_deadline_seconds = deadline_of(test_case, options);
  how.memory_bytes = spec.limits.memory_bytes;
  how.num_ranks_at_once = ranks_at_once(test_case, options.jobs);
  how.hosts = options.hosts;
  how.schedule = schedule;
  run::CaseSpec shared = spec;
  shared.plans = plans.of(test_case.scenario);
  pool.start(ticket, how, [shared, stage, before = options.before_ranks](int rank) {
    if (before) before(*shared.test_case);
    return run::run_case(shared, rank, stage);
  });
}

void command_stage(launch::Hosts& hosts, const StageCommand& command) {
  hosts.send_to_others(launch::Topic::command, hosts.next_command(),
                       str(command.ticket, " ", command.stage, " ", command.folder));
}

std::optional<StageCommand> take_command(launch::Hosts& hosts, std::uint64_t number) {
  const std::optional<std::string> text = hosts.take(0, launch::Topic::command, number);
  if (!text) return {};
  std::istringstream words(*text);
  StageCommand command;
  words >> command.ticket >> command.stage;
  words.get();  // the space
  std::getline(words, command.folder);
  LOCKSTEP_CHECK(!words.fail() && command.ticket >= 0, "the command of host 0: ", *text);
  return command;
}

}  // namespace lockstep::cli
