#include <string>

#include "engine/autograd/op_registry.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "harness/cli/bench.hpp"

namespace lockstep::cli {

void bench_kernels(const BenchOptions& options, const EmitRow& emit) {
  RankContext context(0, 1);
  const RankScope scope(context);
  ops::TimingOptions how;
  if (options.rounds > 0) how.rounds = options.rounds;
  how.scale = options.scale;
  for (const ops::OpTiming& timing : ops::time_operations(device::device_from_name(options.device), how)) {
    const std::string name(timing.name);
    if (!is_wanted(options, name)) continue;
    BenchRow row;
    row.group = "kernels";
    row.name = name;
    row.params = {{"inputs", str("\"", timing.inputs, "\"")},
                  {"gbytes_per_s", str(timing.gbytes_per_s)},
                  {"gflops", str(timing.gflops)}};
    add_device(row, options);
    row.unit = "us";
    row.median = timing.median_us;
    row.low = timing.low_us;
    row.high = timing.high_us;
    row.rounds = timing.rounds;
    emit(row);
  }
}

}  // namespace lockstep::cli
