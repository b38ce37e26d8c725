#include "harness/cli/bench.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "harness/cli/follow_hosts.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/launch/cores.hpp"
#include "harness/launch/environment.hpp"
#include "harness/launch/hosts.hpp"
#include "harness/launch/processes.hpp"

namespace lockstep::cli {

bool is_wanted(const BenchOptions& options, std::string_view name) {
  return options.only.empty() || name.find(options.only) != std::string_view::npos;
}

BenchRow summarize(std::string group, std::string name, std::string unit, std::vector<double> timings) {
  LOCKSTEP_CHECK(!timings.empty(), "no timings of ", name);
  std::sort(timings.begin(), timings.end());
  const auto at = [&](double share) {
    const auto last = static_cast<double>(timings.size() - 1);
    return timings[static_cast<std::size_t>(std::lround(share * last))];
  };
  BenchRow row;
  row.group = std::move(group);
  row.name = std::move(name);
  row.unit = std::move(unit);
  row.median = at(0.5);
  row.low = at(0.1);
  row.high = at(0.9);
  row.rounds = static_cast<int>(timings.size());
  return row;
}

std::string to_json(const BenchRow& row) {
  nlohmann::ordered_json params = nlohmann::ordered_json::object();
  for (const auto& [name, value] : row.params) params[name] = nlohmann::ordered_json::parse(value);
  nlohmann::ordered_json out = {{"kind", "bench"},  {"group", row.group}, {"name", row.name},
                                {"params", params}, {"unit", row.unit},   {"median", row.median},
                                {"low", row.low},   {"high", row.high},   {"rounds", row.rounds}};
  return out.dump();
}

namespace {

void print_row(const BenchRow& row) {
  std::string params;
  for (const auto& [name, value] : row.params) params += str(params.empty() ? "" : " ", name, "=", value);
  fmt::print("{:<12} {:<16} {:<44} {:>12.2f} {:<3} [{:.2f} .. {:.2f}] {} rounds\n", row.group, row.name, params,
             row.median, row.unit, row.low, row.high, row.rounds);
  std::fflush(stdout);
}

constexpr std::pair<const char*, void (*)(const BenchOptions&, const EmitRow&)> known_groups[] = {
    {"collectives", bench_collectives},
    {"steps", bench_steps},
    {"launch", bench_launch},
    {"kernels", bench_kernels},
    {"checkpoint", bench_checkpoint}};

// Runs the groups. `prints`: host 0 alone, of several.
void run_groups(const BenchOptions& options, bool prints) {
  int num_rows = 0;
  const EmitRow emit = [&](const BenchRow& row) {
    ++num_rows;
    if (!prints) return;
    if (options.json)
      fmt::print("{}\n", to_json(row));
    else
      print_row(row);
    std::fflush(stdout);
  };
  for (const auto& [name, run] : known_groups) {
    const bool asked =
        options.groups.empty() || std::find(options.groups.begin(), options.groups.end(), name) != options.groups.end();
    if (asked) run(options, emit);
  }
  if (num_rows == 0) throw Error(str("nothing matches --only ", options.only), "leave --only out to see all names");
}

// All launchers measure the same, each with the ranks of its host.
int run_on_hosts(BenchOptions options, launch::Processes& processes, const launch::ProcessOptions& how) {
  launch::Hosts hosts(processes, how);
  launch::use_cores_of_processes(
      static_cast<int>(std::count(processes.host_of().begin(), processes.host_of().end(), hosts.host())));
  if (hosts.num_hosts() > 1) options.hosts = &hosts;
  int code = 0;
  try {
    for (const std::string& group : options.groups)
      if (group != "collectives" && group != "steps" && hosts.num_hosts() > 1)
        throw Error(str("`bench ", group, "` on several hosts"), "give collectives or steps, or one host");
    run_groups(options, hosts.host() == 0);
  } catch (const Error& error) {
    if (hosts.host() == 0) complain(error.what());
    code = 2;
  }
  if (hosts.host() == 0)
    hosts.end(code);
  else
    code = follow_hosts(hosts, [](const StageCommand&) {});
  if (hosts.any_lost()) hosts.link().abandon(code);
  processes.end(code);
  return code;
}

}  // namespace

int bench(const BenchOptions& options) {
  for (const std::string& group : options.groups) {
    const auto is_it = [&](const auto& one) { return group == one.first; };
    if (std::none_of(std::begin(known_groups), std::end(known_groups), is_it))
      throw Error(str("unknown benchmark `", group, "`"), "one of collectives, steps, launch, kernels, checkpoint");
  }
  const launch::ProcessOptions how = launch::process_options();
  const auto processes = launch::open_processes(launch::recognize_environment(), options.link, how);
  if (processes != nullptr && processes->link() == nullptr) return processes->wait_for_launcher();
  if (processes != nullptr) return run_on_hosts(options, *processes, how);
  run_groups(options, true);
  return 0;
}

}  // namespace lockstep::cli
