#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/comm/bench_support.hpp"
#include "engine/core/error.hpp"
#include "engine/device/order.hpp"
#include "harness/cli/bench.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::cli {

namespace {

constexpr comm::Operation measured[] = {comm::Operation::all_reduce, comm::Operation::all_gather,
                                        comm::Operation::reduce_scatter, comm::Operation::broadcast,
                                        comm::Operation::all_to_all};
constexpr std::int64_t kib = 1024, mib = 1024 * 1024;

// All sizes of an operation in one launch, so that ranks start once.
std::vector<std::vector<double>> time_sizes(comm::Operation operation, int world_size,
                                            const std::vector<std::int64_t>& sizes, int rounds) {
  launch::LaunchOptions how;
  how.world_size = world_size;
  how.timeout_seconds = 300.0;
  const launch::LaunchResult result = launch::launch(how, [&](int rank) {
    device::set_order_check(false);
    verdict::RankOutcome outcome;
    outcome.rank = rank;
    std::vector<std::vector<double>> timings;
    for (const std::int64_t bytes : sizes) {
      comm::BenchOptions options;
      options.operation = operation;
      options.bytes = bytes;
      options.rounds = rounds > 0 ? rounds : bytes <= 64 * kib ? 500 : bytes <= 4 * mib ? 60 : 20;
      timings.push_back(comm::time_collective(options).microseconds);
    }
    outcome.records.emplace_back("timings", nlohmann::json(timings).dump());
    return outcome;
  });
  const verdict::RankOutcome& first = result.outcomes.front();
  if (first.status != verdict::RankStatus::finished || first.records.empty()) {
    throw Error(str(comm::name_of(operation), " with ", world_size, " ranks: ",
                    first.failures.empty() ? verdict::describe_end(first) : first.failures.front().message));
  }
  return nlohmann::json::parse(first.records.front().second).get<std::vector<std::vector<double>>>();
}

}  // namespace

void bench_collectives(const BenchOptions& options, const EmitRow& emit) {
  // With 8 ranks the same total of bytes over all ranks as with 2, from 1 MiB up.
  const std::vector<int> world_sizes = options.world_sizes.empty() ? std::vector<int>{2, 8} : options.world_sizes;
  for (const comm::Operation operation : measured) {
    const std::string name(comm::name_of(operation));
    if (!options.only.empty() && name.find(options.only) == std::string::npos) continue;
    for (const int world_size : world_sizes) {
      std::vector<std::int64_t> sizes = {1 * kib, 64 * kib, 4 * mib, 32 * mib};
      if (world_size > 2) sizes = {1 * kib, 64 * kib, 1 * mib, 8 * mib};
      const auto timings = time_sizes(operation, world_size, sizes, options.rounds);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        BenchRow row = summarise("collectives", name, "us", timings[i]);
        row.params = {{"bytes", str(sizes[i])}, {"world_size", str(world_size)}};
        emit(row);
      }
    }
  }
}

}  // namespace lockstep::cli
