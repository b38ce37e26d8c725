// `lockstep fuzz`: runs programs that a grammar makes (harness/fuzz), and shrinks those that fail.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

struct FuzzSettings {
  std::uint64_t seed = 1;
  double seconds = 0.0;                  // start no further program after this time; 0: no limit
  std::int64_t programs = 0;             // 0: 1000, or as many as `seconds` allows
  std::optional<std::uint64_t> program;  // this program only
  int jobs = 0;                          // programs at once; 0: default_jobs()
  int most_runs = 300;                   // of candidates while a program is shrunk
  int most_failures = 5;                 // the run stops after so many
  std::string peer{};                    // a Python with PyTorch, on which the programs run too; empty: none
  std::string defect{};
  std::string output = "fuzz";  // folder of the files of failing programs
  int keeps = 0;                // write this many programs with the most pairs of features; 0: run them
  bool shows = false;           // print the programs instead of running them
  bool order_check = true;
};

// Prints a line per failing program, with its file and the command that repeats it, and a summary of the programs that
// ran to a verdict. Returns 0, or 1 when a program disagrees, the engine refuses 2 % of the programs or more, or no
// program ran, or 130 after a signal. Throws Error for an unknown defect, ResourceError when the machine refuses
// something.
int fuzz_command(const FuzzSettings& settings);

}  // namespace lockstep::cli
