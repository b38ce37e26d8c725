// What launches, events, allocations and the making of a world cost. Not part of the library:
//
//   ninja -C build device_bench && build/bin/device_bench      prints nanoseconds (median of rounds), with the order
//   check off and on
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/device/arena.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {
namespace {

constexpr Device cpu{Kind::cpu, 0};
constexpr Device sim{Kind::sim, 0};

double nanoseconds(int repeats, const std::function<void()>& f) {
  std::vector<double> rounds;
  for (int round = 0; round < 15; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) f();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    rounds.push_back(spent.count() / repeats);
  }
  std::nth_element(rounds.begin(), rounds.begin() + 7, rounds.end());
  return rounds[7];
}

Access whole(const MemoryPtr& memory, Mode mode) { return {memory.get(), 0, memory->bytes(), mode}; }

void measure(const char* what, int repeats, const std::function<void()>& f) {
  set_order_check(false);
  const double off = nanoseconds(repeats, f);
  set_order_check(true);
  const double on = nanoseconds(repeats, f);
  std::printf("%-52s %9.0f %9.0f\n", what, off, on);
}

// About as many floats as take 2 us.
constexpr std::int64_t num_floats = 16384;

void add(const Pointers& p) {
  const float* a = p.as<const float>(0);
  const float* b = p.as<const float>(1);
  float* out = p.as<float>(2);
  for (std::int64_t i = 0; i < num_floats; ++i) out[i] = a[i] + b[i];
}

void run() {
  RankContext context(0, 1);
  RankScope scope(context);
  Stream& compute = current_stream(cpu);
  Stream& side = stream(cpu, Role::all_gather);
  const MemoryPtr a = allocate(cpu, 4 * num_floats), b = allocate(cpu, 4 * num_floats),
                  out = allocate(cpu, 4 * num_floats);
  std::printf("%-52s %9s %9s\n", "nanoseconds", "check off", "check on");
  measure("launch with three operands, empty body", 20000, [&] {
    launch(compute, "add", {whole(a, Mode::read), whole(b, Mode::read), whole(out, Mode::write)},
           [](const Pointers&) {});
  });
  measure("launch with three operands of 64 KiB", 2000, [&] {
    launch(compute, "add", {whole(a, Mode::read), whole(b, Mode::read), whole(out, Mode::write)}, add);
  });
  measure("the same, its result newly allocated", 2000, [&] {
    const MemoryPtr result = allocate(cpu, 4 * num_floats);
    launch(compute, "add", {whole(a, Mode::read), whole(b, Mode::read), whole(result, Mode::write)}, add);
  });
  measure("allocate and free 1 KiB", 20000, [&] { allocate(cpu, 1024); });
  measure("record and wait", 20000, [&] { side.wait(compute.record()); });
  measure("read_to_host of 4 bytes", 20000, [&] {
    float value = 0;
    read_to_host(&value, *out, 0, sizeof value);
  });
  std::size_t slice = 0;
  measure("launch on one of 256 slices of a block", 20000, [&] {
    slice = (slice + 1) % 256;
    launch(compute, "slice", {Access{out.get(), slice * 256, 256, Mode::write}}, [](const Pointers&) {});
  });
  const MemoryPtr on_sim = allocate(sim, 1024);
  measure("launch on sim and synchronize", 500, [&] {
    launch(current_stream(sim), "touch", {whole(on_sim, Mode::write)}, [](const Pointers&) {});
    current_stream(sim).synchronize();
  });
  measure("100 launches on sim, then synchronize", 20, [&] {
    for (int i = 0; i < 100; ++i) {
      launch(current_stream(sim), "touch", {whole(on_sim, Mode::write)}, [](const Pointers&) {});
    }
    current_stream(sim).synchronize();
  });
  for (int ranks : {2, 8, 128}) {
    for (Sharing sharing : {Sharing::processes, Sharing::threads}) {
      const double spent = nanoseconds(10, [&] { HostWorld::create(ranks, sharing); });
      std::printf("%-7s world of %3d ranks %28s %9.0f\n", sharing == Sharing::threads ? "thread" : "process", ranks, "",
                  spent);
    }
  }
  const auto world = HostWorld::create(2, Sharing::processes);
  const double spent = nanoseconds(20, [&] {
    RankContext rank(0, 2, world.get());
    RankScope inner(rank);
    const MemoryPtr first = allocate(cpu, 1024);
    launch(current_stream(cpu), "touch", {whole(first, Mode::write)}, [](const Pointers& p) { p.at(0)[0] = {}; });
  });
  std::printf("%-52s %9.0f\n", "a rank's runtime, its first block and launch", spent);
}

}  // namespace
}  // namespace lockstep::device

int main() { lockstep::device::run(); }
