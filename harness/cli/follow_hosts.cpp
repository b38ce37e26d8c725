#include "harness/cli/follow_hosts.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/core/error.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/launch/run_folder.hpp"

namespace lockstep::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int wait_ms = 1000;
constexpr std::chrono::seconds most_after_signal{30};

// Tells host 0 that this host does not see the folder of an option.
void report_if_unseen(launch::Hosts& hosts, std::uint64_t number, const std::string& folder) {
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::exists(folder, ignored))
    hosts.send(0, launch::Topic::unseen, number, folder);
}

}  // namespace

int follow_hosts(launch::Hosts& hosts, const std::function<void(const StageCommand&)>& perform) {
  std::optional<Clock::time_point> signalled;
  for (std::uint64_t number = 0;;) {
    const bool alive = hosts.is_alive(0);  // before its last letters are read
    hosts.progress();
    if (const std::optional<int> code = hosts.ended()) return *code;
    if (!alive || hosts.is_lost(0)) {
      hosts.note_lost(0, "host 0 has ended");
      return interrupted() ? 130 : 3;
    }
    if (interrupted()) {
      hosts.report_interrupt(interrupting_signal());
      if (!signalled) signalled = Clock::now();
      if (Clock::now() - *signalled > most_after_signal) {
        hosts.note_lost(0, "host 0 does not end the run");
        return 130;
      }
    }
    if (const std::optional<StageCommand> command = take_command(hosts, number)) {
      ++number;
      perform(*command);
    } else {
      hosts.wait(wait_ms);
    }
  }
}

int follow_cases(scenario::Library& library, const std::vector<scenario::Case>& cases, const RunCasesOptions& options) {
  launch::Hosts& hosts = *options.hosts;
  launch::Pool pool(1);
  run::PlanBoards plans;
  launch::FollowedFolder folder;
  bool has_told = false, has_looked = false;
  return follow_hosts(hosts, [&](const StageCommand& command) {
    LOCKSTEP_CHECK(static_cast<std::size_t>(command.ticket) < cases.size(), "host 0 starts case ", command.ticket,
                   " of ", cases.size());
    if (!folder.enter(command.folder) && !has_told) {
      has_told = true;
      hosts.send(0, launch::Topic::unseen, 0, command.folder);
    }
    if (!has_looked) {  // host 0 has made these folders; the ranks of this host would make their own
      has_looked = true;
      report_if_unseen(hosts, unseen_trace_bits, options.trace_folder);
      report_if_unseen(hosts, unseen_timeline, options.timeline_folder);
    }
    const scenario::Case& test_case = cases[static_cast<std::size_t>(command.ticket)];
    start_stage(pool, command.ticket, spec_of(library, test_case, command.ticket, command.folder, options),
                command.stage, options, plans, {}, {}, command.seconds_before);
    pool.next([&] {
      if (interrupted()) hosts.report_interrupt(interrupting_signal());
      return interrupted();
    });
  });
}

}  // namespace lockstep::cli
