// The values of all options of a command line.
#pragma once

#include <string>
#include <vector>

#include "harness/cli/bench.hpp"
#include "harness/cli/fuzz_command.hpp"
#include "harness/cli/run_command.hpp"

namespace lockstep::cli {

// The values of all options, filled by the parser. The subcommands share the fields of equal options.
struct Choices {
  RunSettings run;
  std::string launch;
  std::string sum_order;
  std::string shard;
  bool json = false;
  bool all = false;
  bool trace = false;
  bool documents = false;
  bool gate_time = false, allow_cut = false;
  std::string machine, format = "text";
  int rank = 0;
  std::string name, old_results, new_results, earlier_results, folder, output;
  std::vector<std::string> files, defects;
  BenchOptions bench;
  FuzzSettings fuzz;
  int world_size = 0;
  double timeout = 0.0;
  bool no_order_check = false;
  bool verbose = false, quiet = false;
};

}  // namespace lockstep::cli
