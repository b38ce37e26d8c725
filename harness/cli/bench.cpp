#include "harness/cli/bench.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"

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

}  // namespace

int bench(const BenchOptions& options) {
  static constexpr std::pair<const char*, void (*)(const BenchOptions&, const EmitRow&)> known[] = {
      {"collectives", bench_collectives},
      {"steps", bench_steps},
      {"launch", bench_launch},
      {"kernels", bench_kernels},
      {"checkpoint", bench_checkpoint}};
  for (const std::string& group : options.groups) {
    if (std::none_of(std::begin(known), std::end(known), [&](const auto& one) { return group == one.first; })) {
      throw Error(str("unknown benchmark `", group, "`"), "one of collectives, steps, launch, kernels, checkpoint");
    }
  }
  int num_rows = 0;
  const EmitRow emit = [&](const BenchRow& row) {
    ++num_rows;
    if (options.json)
      fmt::print("{}\n", to_json(row));
    else
      print_row(row);
    std::fflush(stdout);
  };
  for (const auto& [name, run] : known) {
    const bool asked =
        options.groups.empty() || std::find(options.groups.begin(), options.groups.end(), name) != options.groups.end();
    if (asked) run(options, emit);
  }
  if (num_rows == 0) throw Error(str("nothing matches --only ", options.only), "leave --only out to see all names");
  return 0;
}

}  // namespace lockstep::cli
