#include <string>
#include <vector>

#include "engine/core/error.hpp"
#include "harness/cli/bench.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::cli {

// The cost of a launch: a case whose ranks do nothing, from its start to its last outcome.
void bench_launch(const BenchOptions& options, const EmitRow& emit) {
  const std::vector<int> world_sizes = options.world_sizes.empty() ? std::vector<int>{2, 8} : options.world_sizes;
  const int rounds = options.rounds > 0 ? options.rounds : 30;
  for (const launch::Launch kind : {launch::Launch::thread, launch::Launch::process}) {
    const std::string name = kind == launch::Launch::thread ? "thread" : "process";
    if (!is_wanted(options, name)) continue;
    for (const int world_size : world_sizes) {
      launch::LaunchOptions how;
      how.world_size = world_size;
      how.launch = kind;
      std::vector<double> timings;
      for (int i = 0; i < rounds; ++i) {
        const launch::LaunchResult result = launch::launch(how, [](int rank) {
          verdict::RankOutcome outcome;
          outcome.rank = rank;
          return outcome;
        });
        for (const verdict::RankOutcome& outcome : result.outcomes) {
          if (outcome.status != verdict::RankStatus::finished) throw Error(verdict::describe_end(outcome));
        }
        timings.push_back(result.seconds * 1e3);
      }
      BenchRow row = summarize("launch", name, "ms", timings);
      row.params = {{"world_size", str(world_size)}};
      emit(row);
    }
  }
}

}  // namespace lockstep::cli
