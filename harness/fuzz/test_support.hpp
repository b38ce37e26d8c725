// What several tests of the fuzzer share.
#pragma once

#include "harness/fuzz/program.hpp"

namespace lockstep::fuzz::testing_support {

// A Linear under fully_shard on two ranks with one step of SGD.
inline Program small_program() {
  Program program;
  program.model.build = "Sequential(Linear(4, 4))";
  program.model.units = {{.path = "0", .type = "Linear"}};
  program.model.blocks = {"0"};
  program.model.input = "randn(rows, 4)";
  program.parallel.groups = {{.modules = {""}, .reshard = ""}};
  program.parallel.data_ranks = 2;
  program.steps = {Step{}};
  return program;
}

}  // namespace lockstep::fuzz::testing_support
