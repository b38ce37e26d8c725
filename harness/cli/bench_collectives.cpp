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

int rounds_of(std::int64_t bytes) { return bytes <= 64 * kib ? 500 : bytes <= 4 * mib ? 60 : 20; }

// Measures all sizes of an operation in one launch, so that the ranks start once. Returns microseconds per size and
// round.
std::vector<std::vector<double>> time_sizes(comm::Operation operation, int world_size,
                                            const std::vector<std::int64_t>& sizes, const BenchOptions& asked) {
  const int rounds = asked.rounds;
  launch::LaunchOptions how;
  how.world_size = world_size;
  how.timeout_seconds = 300.0;
  how.hosts = asked.hosts;
  const launch::LaunchResult result = launch::launch(how, [&](int rank) {
    device::set_order_check(false);
    verdict::RankOutcome outcome;
    outcome.rank = rank;
    std::vector<std::vector<double>> timings;
    for (const std::int64_t bytes : sizes) {
      comm::BenchOptions options;
      options.operation = operation;
      options.bytes = bytes;
      options.device = device::device_from_name(asked.device);
      options.rounds = rounds > 0 ? rounds : rounds_of(bytes);
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

// Measures an operation with few and with many ranks that touch the same total number of bytes, and the ratio of the
// two times. The two take turns, so that a slow moment of the machine affects both. The ratio is that of the medians
// per turn.
void compare_world_sizes(comm::Operation operation, const BenchOptions& options, const EmitRow& emit) {
  const int few = options.world_sizes.size() == 2 ? options.world_sizes[0] : 2;
  const int many = options.world_sizes.size() == 2 ? options.world_sizes[1] : 8;
  constexpr int num_turns = 7;
  const std::vector<std::int64_t> of_many = {1 * mib, 8 * mib};
  std::vector<std::int64_t> of_few;
  of_few.reserve(of_many.size());
  for (const std::int64_t bytes : of_many)
    of_few.push_back(comm::bytes_that_touch(operation, few, comm::touched_bytes(operation, many, bytes)));
  std::vector<std::vector<double>> ratios(of_many.size()), few_times(of_many.size()), many_times(of_many.size());
  const auto append = [](std::vector<double>& to, const std::vector<double>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (int turn = 0; turn < num_turns; ++turn) {
    const auto few_timings = time_sizes(operation, few, of_few, options);
    const auto many_timings = time_sizes(operation, many, of_many, options);
    for (std::size_t i = 0; i < of_many.size(); ++i) {
      ratios[i].push_back(median(many_timings[i]) / median(few_timings[i]));
      append(few_times[i], few_timings[i]);
      append(many_times[i], many_timings[i]);
    }
  }
  const std::string name(comm::name_of(operation));
  for (std::size_t i = 0; i < of_many.size(); ++i) {
    BenchRow row = summarize("collectives", name, "us", few_times[i]);
    row.params = {{"bytes", str(of_few[i])}, {"world_size", str(few)}};
    add_device(row, options);
    emit(row);
    row = summarize("collectives", name, "us", many_times[i]);
    row.params = {{"bytes", str(of_many[i])}, {"world_size", str(many)}};
    add_device(row, options);
    emit(row);
    row = summarize("collectives", name, "x", ratios[i]);
    row.params = {{"touched_bytes", str(comm::touched_bytes(operation, many, of_many[i]))},
                  {"world_sizes", str("[", few, ",", many, "]")}};
    add_device(row, options);
    emit(row);
  }
}

}  // namespace

void bench_collectives(const BenchOptions& options, const EmitRow& emit) {
  if (options.same_bytes && !options.world_sizes.empty() && options.world_sizes.size() != 2)
    throw Error(str("--same-bytes compares two numbers of ranks, not ", options.world_sizes.size()),
                "give --world-size twice, the smaller one first, or leave it out for 2 and 8");
  const std::vector<int> world_sizes = options.world_sizes.empty() ? std::vector<int>{2, 8} : options.world_sizes;
  for (const comm::Operation operation : measured) {
    const std::string name(comm::name_of(operation));
    if (!is_wanted(options, name)) continue;
    if (options.same_bytes) {
      compare_world_sizes(operation, options, emit);
      continue;
    }
    for (const int world_size : world_sizes) {
      std::vector<std::int64_t> sizes = {1 * kib, 64 * kib, 4 * mib, 32 * mib};
      if (world_size > 2) sizes = {1 * kib, 64 * kib, 1 * mib, 8 * mib};
      const auto timings = time_sizes(operation, world_size, sizes, options);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        BenchRow row = summarize("collectives", name, "us", timings[i]);
        row.params = {{"bytes", str(sizes[i])}, {"world_size", str(world_size)}};
        add_device(row, options);
        emit(row);
      }
    }
  }
}

}  // namespace lockstep::cli
