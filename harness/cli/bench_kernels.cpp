#include <string>
#include <vector>

#include "engine/autograd/op_registry.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/kernels/backend.hpp"
#include "harness/cli/bench.hpp"

namespace lockstep::cli {

namespace {

std::vector<ops::OpTiming> time_operations(const BenchOptions& options) {
  RankContext context(0, 1);
  const RankScope scope(context);
  ops::TimingOptions how;
  if (options.rounds > 0) how.rounds = options.rounds;
  how.scale = options.scale;
  return ops::time_operations(device::device_from_name(options.device), how);
}

}  // namespace

void bench_kernels(const BenchOptions& options, const EmitRow& emit) {
  const std::vector<ops::OpTiming> timings = time_operations(options);
  kernels::finalize();  // before the objects of this program that Kokkos needs for its end
  for (const ops::OpTiming& timing : timings) {
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
