// The cases of a scenario: one per combination of matrix values, world size and launch, on one device. The rules (skip,
// expect_failure) are evaluated here, before anything is launched.
//
//   ExpandOptions options;
//   options.set = {"seed=7"};
//   for (const Case& c : expand(scenario, options)) if (!c.skip) launch(c);
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

struct ExpandOptions {
  std::vector<std::string> set;              // "NAME=VALUE": replaces the value of a parameter by one of the same kind
  std::string only;                          // --case: "key=value,..." of matrix names, world_size, launch, device
  std::optional<int> world_size;             // instead of the scenario's
  std::optional<Launch> launch;              // instead of the scenario's
  std::string device;                        // empty: cpu, or the first of the scenario's list that the build has
  std::vector<std::string> tags;             // scenarios with one of these tags; empty: all
  std::optional<std::pair<int, int>> shard;  // I of N, I from 1; over all cases of expand_all
  std::optional<double> timeout;             // seconds
  std::optional<std::int64_t> memory_mb;     // as in `limits`
  std::optional<std::int64_t> output_mb;
  std::optional<SumOrder> sum_order;  // instead of the scenario's
  std::vector<std::string> available_devices{"cpu", "sim"};
  std::map<std::string, std::string> missing_devices;  // the reason, by device; without one the build lacks it
};

// The values that expressions can use before launch, by name.
using Bindings = std::map<std::string, Literal, std::less<>>;

struct ExpectedFailure {
  std::string reason;
  std::optional<int> line;
  std::string message;  // empty: anything
  std::string verdict = "FAIL";
  std::optional<int> rank{};
  std::optional<std::vector<std::string>> also{};
  std::string flight_recorder{};  // empty: anything
};

struct StageLaunch {
  std::string name;
  int world_size = 1;
};

struct Case {
  std::shared_ptr<const Scenario> scenario;
  std::vector<std::pair<std::string, Literal>>
      params;  // matrix values, in order; labelled values are maps with `label`
  std::vector<std::pair<std::string, Literal>> parameters;  // after --set
  std::vector<std::string> set;                             // the --set options of this scenario, for `repro`
  int world_size = 1;
  Launch launch = Launch::process;
  std::string device;
  std::string id;                          // "layers=3,world_size=2,launch=process,device=cpu"
  std::vector<StageLaunch> stages;         // in the order of scenario->stages
  std::optional<std::string> skip;         // the reason why the case is skipped
  std::optional<std::string> unsupported;  // the device that this build lacks, as a message
  std::optional<ExpectedFailure> expect_failure;
  std::vector<std::pair<std::string, double>> evidence;  // the evidence that the case must gather
  double timeout = limits::timeout_seconds;
  std::optional<double> deadline;         // of collectives, in seconds; not set: that of the run
  std::optional<std::int64_t> memory_mb;  // per rank; not set: the default, which the machine bounds
  std::int64_t output_mb = limits::output_mb;
  SumOrder sum_order = SumOrder::fixed;
  std::string overrides;  // options that `repro` needs beside --case and --set: " --world-size 3"

  // Matrix values in the form of the results: (name, JSON); of labelled values the label.
  std::vector<std::pair<std::string, std::string>> params_json() const;
  std::string repro() const;  // "lockstep run NAME --case '...'"
};

// The cases in order: the first matrix name varies slowest, then world sizes, then launches. Throws ScenarioError for
// rules or stages that cannot be evaluated and for more than 10,000 cases, and Error for options that do not fit.
std::vector<Case> expand(const std::shared_ptr<const Scenario>& scenario, const ExpandOptions& options);

// The cases of all scenarios, after --tag and --shard (expand_all.cpp). Throws as expand does, and Error for a --set
// that no scenario has and for a --case that matches no case.
std::vector<Case> expand_all(const std::vector<std::shared_ptr<const Scenario>>& scenarios,
                             const ExpandOptions& options);

// The text as one word of a shell.
std::string shell_quoted(const std::string& text);

// Evaluates an expression of literals, names of `bindings` and plain functions (evaluate_constant.cpp). Throws
// ScenarioError with the place in `file`.
Literal evaluate_constant(const Expr& expr, const Bindings& bindings, const std::string& file);

}  // namespace lockstep::scenario
