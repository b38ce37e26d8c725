// Timings of every operation of the registry: forward without recording, and backward if it has one. On small operands
// (the first variant of its checks), where the cost of the call dominates, and on large ones (the timed variant).
//
//   ci/bench.sh operations --filter 'matmul'
//
// main() is in this file because the registry can be read only after static initialization, and BENCHMARK() runs during
// it.
#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/op_registry.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::ops {
namespace {

// Each measurement has its own rank, so that no state carries over to the next.
struct Bench {
  explicit Bench(const OpVariant& variant) {
    device::set_order_check(false);
    Generator generator;
    generator.seed(1);
    for (const OpInput& input : variant.inputs) inputs.push_back(make_input(input, DType::float32, {}, generator));
    for (const Tensor& input : inputs) bytes += input.num_bytes();
  }

  RankContext context{0, 1};
  RankScope scope{context};
  std::vector<Tensor> inputs;
  std::int64_t bytes = 0;
};

void count(benchmark::State& state, const OpCase& op, std::int64_t bytes, bool is_large) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * bytes);
  if (is_large && op.flops > 0.0)
    state.counters["flops"] = benchmark::Counter(op.flops * static_cast<double>(state.iterations()),
                                                 benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void forward(benchmark::State& state, const OpCase& op, const OpVariant& variant, bool is_large) {
  Bench bench(variant);
  const NoGrad no_grad;
  Tensor result = variant.run(bench.inputs);  // warms up memory and caches
  for (auto _ : state) {
    result = variant.run(bench.inputs);
    benchmark::DoNotOptimize(result);
  }
  count(state, op, bench.bytes + result.num_bytes(), is_large);
}

// Times backward alone, over one retained graph. Gradients are removed before each run.
void backward_of(benchmark::State& state, const OpCase& op, const OpVariant& variant) {
  Bench bench(variant);
  std::vector<Tensor> leaves;
  for (const Tensor& input : bench.inputs) {
    if (!is_floating(input.dtype())) continue;
    set_requires_grad(input, true);
    leaves.push_back(input);
  }
  const Tensor result = variant.run(bench.inputs);
  const Tensor weights = full(result.sizes(), 0.5, result.dtype(), result.device());
  const bool retain_graph = true;
  lockstep::backward({result}, {weights}, retain_graph);
  for (auto _ : state) {
    for (const Tensor& leaf : leaves) set_grad(leaf, {});
    lockstep::backward({result}, {weights}, retain_graph);
  }
  count(state, op, bench.bytes + weights.num_bytes(), false);
}

}  // namespace

static void register_operations() {
  for (const OpCase& op : op_registry()) {
    for (const bool is_large : {false, true}) {
      const OpVariant& variant = is_large ? op.timed : op.variants.front();
      const std::string size = is_large ? "large" : "small";
      const std::string name(op.name);
      benchmark::RegisterBenchmark(
          ("operations/" + name + "/forward/" + size).c_str(),
          [&op, &variant, is_large](benchmark::State& state) { forward(state, op, variant, is_large); });
      if (!op.differentiable) continue;
      benchmark::RegisterBenchmark(("operations/" + name + "/backward/" + size).c_str(),
                                   [&op, &variant](benchmark::State& state) { backward_of(state, op, variant); });
    }
  }
}

}  // namespace lockstep::ops

int main(int count, char** arguments) {
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  lockstep::ops::register_operations();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
