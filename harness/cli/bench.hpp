// `lockstep bench`: measures collectives, training steps, launches, kernels and checkpoints on real ranks, and
// prints a table or JSON lines. A timing is a median with its 10th and 90th percentile. A measurement of several ranks
// begins when the last rank has entered and ends when the last rank has left.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launch {
class Hosts;
}

namespace lockstep::cli {

struct BenchOptions {
  std::vector<std::string> groups{};  // collectives, steps, launch, kernels, checkpoint; empty: all
  bool json = false;
  int rounds = 0;                  // measurements per row; 0: as many as take about a second
  std::vector<int> world_sizes{};  // empty: 2, and 8 for collectives
  bool same_bytes = false;         // collectives only: compare two world sizes on the same total number of bytes
  int scale = 1;                   // kernels: inputs are so many times larger where memory limits the speed
  std::string device = "cpu";      // of collectives, steps and kernels: cpu, sim or cuda
  std::string only{};              // a part of the name of the measurements; empty: all
  std::string link{};              // how launchers of several hosts find each other (run_settings.hpp)
  launch::Hosts* hosts = nullptr;  // of a run that mpirun, srun or torchrun started; set by bench()
};

struct BenchRow {
  std::string group;
  std::string name;
  std::vector<std::pair<std::string, std::string>> params;  // values as JSON
  std::string unit;                                         // us, ms, or x for a ratio
  double median = 0.0, low = 0.0, high = 0.0;
  int rounds = 0;
};

// Whether --only is a part of the name, or not given.
bool is_wanted(const BenchOptions& options, std::string_view name);
// The members of `params` that say where a measurement ran: none on cpu.
void add_device(BenchRow& row, const BenchOptions& options);
double median(std::vector<double> timings);  // the mean of the middle two if their number is even
// Median and percentiles of `timings`, which are in `unit`. LOCKSTEP_CHECKs that there is one.
BenchRow summarize(std::string group, std::string name, std::string unit, std::vector<double> timings);
std::string to_json(const BenchRow& row);  // one line, without its end

// Returns 0. Throws Error for an unknown group, for a name that matches nothing, and when a rank fails.
int bench(const BenchOptions& options);

// One function per group; each calls `emit` for every row as soon as it is measured.
using EmitRow = std::function<void(const BenchRow&)>;
void bench_collectives(const BenchOptions& options, const EmitRow& emit);
void bench_steps(const BenchOptions& options, const EmitRow& emit);
void bench_launch(const BenchOptions& options, const EmitRow& emit);
void bench_checkpoint(const BenchOptions& options, const EmitRow& emit);
void bench_kernels(const BenchOptions& options, const EmitRow& emit);

}  // namespace lockstep::cli
