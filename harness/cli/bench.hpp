// `lockstep bench`: collectives, training steps, launching and kernels, measured on real ranks; a table for people or
// JSON lines. Timings are medians with the 10th and 90th percentile; a measurement of ranks goes from the last rank in
// to the last out.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::cli {

struct BenchOptions {
  std::vector<std::string> groups{};  // collectives, steps, launch, kernels; empty: all
  bool json = false;
  int rounds = 0;                  // 0: as many as fit a second or so
  std::vector<int> world_sizes{};  // empty: 2, and 8 for collectives
  bool same_bytes = false;  // of collectives, instead: how two numbers of ranks compare on the same total of bytes
  std::string only{};       // a part of the name; empty: all
};

struct BenchRow {
  std::string group;
  std::string name;
  std::vector<std::pair<std::string, std::string>> params;  // values as JSON
  std::string unit;                                         // us, ms, or x for a ratio
  double median = 0.0, low = 0.0, high = 0.0;
  int rounds = 0;
};

// Whether --only selects a measurement of this name: it is a part of the name, or not given.
bool is_wanted(const BenchOptions& options, std::string_view name);
// Median and percentiles of timings, in the unit's own scale.
BenchRow summarize(std::string group, std::string name, std::string unit, std::vector<double> timings);
std::string to_json(const BenchRow& row);

int bench(const BenchOptions& options);

// The groups, each in a file of its own; `emit` is called for each row as it is measured.
using EmitRow = std::function<void(const BenchRow&)>;
void bench_collectives(const BenchOptions& options, const EmitRow& emit);
void bench_steps(const BenchOptions& options, const EmitRow& emit);
void bench_launch(const BenchOptions& options, const EmitRow& emit);
void bench_kernels(const BenchOptions& options, const EmitRow& emit);

}  // namespace lockstep::cli
