// How a stage of a case is launched, the same on every host of a run; and the commands by which host 0 has the other
// hosts launch it too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/run_cases.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/run/trace/plan_board.hpp"

namespace lockstep::cli {

// `ticket` is the index of the case in the run. `plans`: of the ranks that this launcher forks, for the whole run.
// `series`: where it is given, ranks that are threads run in a process that runs several cases
// (Pool::start_in_series). `seconds_before`: the seconds of its time limit that the case has used.
run::CaseSpec spec_of(const scenario::Library& library, const scenario::Case& test_case, int ticket,
                      const std::string& case_folder, const RunCasesOptions& options);
void start_stage(launch::Pool& pool, int ticket, const run::CaseSpec& spec, std::size_t stage,
                 const RunCasesOptions& options, run::PlanBoards& plans,
                 const std::shared_ptr<launch::RunSchedule>& schedule = {}, const launch::SeriesFunction& series = {},
                 double seconds_before = 0.0);
// The stages of these cases, for processes that run several. All arguments outlive it.
launch::SeriesFunction series_of(const scenario::Library& library, const std::vector<scenario::Case>& cases,
                                 const RunCasesOptions& options);

struct StageCommand {
  int ticket = 0;
  std::size_t stage = 0;
  std::string folder;           // of the case; host 0 has made it
  double seconds_before = 0.0;  // as of start_stage()
};
std::string to_text(const StageCommand& command);
// On host 0, before it starts the stage itself.
void command_stage(launch::Hosts& hosts, const StageCommand& command);
// On another host: the next command, if it has arrived. `number` counts the commands from 0.
std::optional<StageCommand> take_command(launch::Hosts& hosts, std::uint64_t number);

}  // namespace lockstep::cli
