// The cost of launches, events, allocations and the creation of a HostWorld. The argument `check` turns the order check
// off and on.
//
//   ci/bench.sh operations --filter 'device/'
#include <cstdint>
#include <memory>

#include <benchmark/benchmark.h>

#include "engine/core/rank_context.hpp"
#include "engine/device/arena.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {
namespace {

constexpr Device cpu{Kind::cpu, 0};
constexpr Device sim{Kind::sim, 0};
constexpr std::int64_t num_floats = 16384;  // an addition takes about 2 us

// A rank. The benchmark's argument turns its order check on or off.
struct Rank {
  explicit Rank(const benchmark::State& state) { set_order_check(state.range(0) != 0); }
  RankContext context{0, 1};
  RankScope scope{context};
};
void with_and_without_check(benchmark::internal::Benchmark* of) { of->ArgName("check")->Arg(0)->Arg(1); }

Access full_access(const MemoryPtr& memory, Mode mode) { return {memory.get(), 0, memory->bytes(), mode}; }

void add(const Pointers& p) {
  const float* a = p.as<const float>(0);
  const float* b = p.as<const float>(1);
  float* out = p.as<float>(2);
  for (std::int64_t i = 0; i < num_floats; ++i) out[i] = a[i] + b[i];
}

void launch_empty(benchmark::State& state) {
  const Rank rank(state);
  const MemoryPtr a = allocate(cpu, 4 * num_floats), b = allocate(cpu, 4 * num_floats);
  const MemoryPtr out = allocate(cpu, 4 * num_floats);
  Stream& compute = current_stream(cpu);
  for (auto _ : state)
    launch(compute, "empty", {full_access(a, Mode::read), full_access(b, Mode::read), full_access(out, Mode::write)},
           [](const Pointers&) {});
}
BENCHMARK(launch_empty)->Name("device/launch_empty")->Apply(with_and_without_check);

void launch_add(benchmark::State& state) {
  const Rank rank(state);
  const MemoryPtr a = allocate(cpu, 4 * num_floats), b = allocate(cpu, 4 * num_floats);
  const MemoryPtr out = allocate(cpu, 4 * num_floats);
  Stream& compute = current_stream(cpu);
  for (auto _ : state)
    launch(compute, "add", {full_access(a, Mode::read), full_access(b, Mode::read), full_access(out, Mode::write)},
           add);
}
BENCHMARK(launch_add)->Name("device/launch_add_64KiB")->Apply(with_and_without_check);

void launch_add_to_new(benchmark::State& state) {
  const Rank rank(state);
  const MemoryPtr a = allocate(cpu, 4 * num_floats), b = allocate(cpu, 4 * num_floats);
  Stream& compute = current_stream(cpu);
  for (auto _ : state) {
    const MemoryPtr result = allocate(cpu, 4 * num_floats);
    launch(compute, "add", {full_access(a, Mode::read), full_access(b, Mode::read), full_access(result, Mode::write)},
           add);
  }
}
BENCHMARK(launch_add_to_new)->Name("device/launch_add_64KiB_to_new")->Apply(with_and_without_check);

void launch_on_slices(benchmark::State& state) {
  const Rank rank(state);
  const MemoryPtr out = allocate(cpu, 256 * 256);
  Stream& compute = current_stream(cpu);
  std::size_t slice = 0;
  for (auto _ : state) {
    slice = (slice + 1) % 256;
    launch(compute, "slice", {Access{out.get(), slice * 256, 256, Mode::write}}, [](const Pointers&) {});
  }
}
BENCHMARK(launch_on_slices)->Name("device/launch_on_one_of_256_slices")->Apply(with_and_without_check);

void allocate_and_free(benchmark::State& state) {
  const Rank rank(state);
  for (auto _ : state) benchmark::DoNotOptimize(allocate(cpu, 1024));
}
BENCHMARK(allocate_and_free)->Name("device/allocate_and_free_1KiB")->Apply(with_and_without_check);

void record_and_wait(benchmark::State& state) {
  const Rank rank(state);
  Stream& compute = current_stream(cpu);
  Stream& side = stream(cpu, Role::all_gather);
  for (auto _ : state) side.wait(compute.record());
}
BENCHMARK(record_and_wait)->Name("device/record_and_wait")->Apply(with_and_without_check);

void read_four_bytes(benchmark::State& state) {
  const Rank rank(state);
  const MemoryPtr out = allocate(cpu, 1024);
  for (auto _ : state) {
    float value = 0;
    read_to_host(&value, *out, 0, sizeof value);
    benchmark::DoNotOptimize(value);
  }
}
BENCHMARK(read_four_bytes)->Name("device/read_to_host_4B")->Apply(with_and_without_check);

// Issues `launches` launches on a sim stream, then waits for all.
void launch_on_sim(benchmark::State& state) {
  const Rank rank(state);
  const MemoryPtr memory = allocate(sim, 1024);
  Stream& compute = current_stream(sim);
  for (auto _ : state) {
    for (std::int64_t i = 0; i < state.range(1); ++i)
      launch(compute, "touch", {full_access(memory, Mode::write)}, [](const Pointers&) {});
    compute.synchronize();
  }
}
BENCHMARK(launch_on_sim)
    ->Name("device/launch_on_sim_and_synchronize")
    ->ArgNames({"check", "launches"})
    ->ArgsProduct({{0, 1}, {1, 100}})
    ->UseRealTime();

void make_world(benchmark::State& state, Sharing sharing) {
  const int ranks = static_cast<int>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(HostWorld::create(ranks, sharing));
}
BENCHMARK_CAPTURE(make_world, processes, Sharing::processes)
    ->Name("device/make_world_of_processes")
    ->ArgName("ranks")
    ->Arg(2)
    ->Arg(8)
    ->Arg(128);
BENCHMARK_CAPTURE(make_world, threads, Sharing::threads)
    ->Name("device/make_world_of_threads")
    ->ArgName("ranks")
    ->Arg(2)
    ->Arg(8)
    ->Arg(128);

void start_rank(benchmark::State& state) {
  const auto world = HostWorld::create(2, Sharing::processes);
  for (auto _ : state) {
    RankContext context(0, 2, world.get());
    const RankScope scope(context);
    const MemoryPtr first = allocate(cpu, 1024);
    launch(current_stream(cpu), "touch", {full_access(first, Mode::write)}, [](const Pointers& p) { p.at(0)[0] = {}; });
  }
}
BENCHMARK(start_rank)->Name("device/start_rank_allocate_and_launch");

}  // namespace
}  // namespace lockstep::device
