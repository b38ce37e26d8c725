#include "harness/cli/bench.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/device/cuda/stand_in.hpp"
#include "engine/device/device.hpp"
#include "engine/kernels/backend.hpp"
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

void add_device(BenchRow& row, const BenchOptions& options) {
  if (options.device == "cpu") return;
  const int gpus = options.device == "cuda" ? device::cuda::gpus_of_stand_in() : 0;
  const std::string which = gpus > 0 ? str(" ", device::cuda::stand_in_setting(gpus)) : "";
  row.params.emplace_back("device", str("\"", options.device, which, "\""));
}

double median(std::vector<double> timings) {
  std::sort(timings.begin(), timings.end());
  return (timings[(timings.size() - 1) / 2] + timings[timings.size() / 2]) / 2;
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
  row.median = median(timings);
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

struct Group {
  const char* name;
  void (*run)(const BenchOptions& options, const EmitRow& emit);
  bool takes_device;
};
constexpr Group known_groups[] = {{"collectives", bench_collectives, true},
                                  {"steps", bench_steps, true},
                                  {"launch", bench_launch, false},
                                  {"kernels", bench_kernels, true},
                                  {"checkpoint", bench_checkpoint, false}};

bool is_asked_for(const Group& group, const BenchOptions& options) {
  if (options.groups.empty()) return group.takes_device || options.device == "cpu";
  return std::find(options.groups.begin(), options.groups.end(), group.name) != options.groups.end();
}

// Throws Error for an unknown group, and for one that does not run on the device.
void check_groups(const BenchOptions& options) {
  for (const std::string& name : options.groups) {
    const auto group = std::find_if(std::begin(known_groups), std::end(known_groups),
                                    [&](const Group& one) { return name == one.name; });
    if (group == std::end(known_groups))
      throw Error(str("unknown benchmark `", name, "`"), "one of collectives, steps, launch, kernels, checkpoint");
    if (!group->takes_device && options.device != "cpu")
      throw Error(str("`bench ", name, "` on ", options.device), "leave --device out");
  }
}

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
  for (const Group& group : known_groups)
    if (is_asked_for(group, options)) group.run(options, emit);
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
  check_groups(options);
  device::require_available(device::kind_from_name(options.device));
  const launch::ProcessOptions how = launch::process_options();
  std::unique_ptr<launch::Processes> processes;
  if (options.link != "none")  // otherwise nothing reads the launch variables, which may be wrong
    processes = launch::open_processes(launch::recognize_environment(), options.link, how);
  if (processes != nullptr && processes->link() == nullptr) return processes->wait_for_launcher();
  if (processes != nullptr) return run_on_hosts(options, *processes, how);
  run_groups(options, true);
  kernels::finalize();  // `kernels` runs in this process; Kokkos ends before the static objects that it uses
  return 0;
}

}  // namespace lockstep::cli
