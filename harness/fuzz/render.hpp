// Programs as scenarios, and as the same document in JSON for PyTorch's interpreter (ci/fuzz_torch.py).
//
//   write(path, render(program).yaml);
//
// Each scenario trains up to three models on the same inputs: `test` under the APIs, `replicated`, and `alone`, whose
// gradients each rank computes without a collective (scenarios/lib/alone_on_one_rank.yaml). Where the engine promises
// the same bits, the checks require them; elsewhere they allow what `allowance_of` says.
#pragma once

#include <string>

#include "harness/fuzz/program.hpp"

namespace lockstep::fuzz {

// Whether all of a program's checks require the same bits: no product of matrices is split over ranks, no value is
// rounded to 16 bits on one side only, no norm is summed in another order, no partial sum is kept between microbatches,
// and no parameter is tied late. Gradients under a scaler may differ below the smallest normal float32.
bool promises_bits(const Program& program);

std::string name_of(const Program& program);  // "seed_7_program_3"; its scenario is fuzz/seed_7_program_3

struct Rendered {
  std::string yaml;  // two spaces of indentation, maps of one line where they fit into 116 columns
  std::string json;  // one line
};

// `for_peer` adds the records that ci/fuzz_torch.py compares with, and gives Adam a large eps, so that a gradient which
// is zero but for rounding moves no parameter.
Rendered render(const Program& program, bool for_peer = false);

}  // namespace lockstep::fuzz
