// Programs as scenarios. The steps of a scenario are a JSON document first, which the YAML text and PyTorch's
// interpreter (ci/fuzz_torch.py) share.
//
//   const nlohmann::ordered_json document = scenario_of(program);
//   write(path, yaml_text(document));
//
// Each scenario trains up to three models on the same inputs: `test` under the APIs, `replicated`, and `alone`, whose
// gradients each rank computes without a collective (scenarios/lib/alone_on_one_rank.yaml). Where the engine promises
// the same bits, the checks require them; elsewhere they allow what `allowance_of` says.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "harness/fuzz/program.hpp"

namespace lockstep::fuzz {

// Whether all of a program's checks require the same bits: no product of matrices is split over ranks, no value is
// rounded to 16 bits on one side only, no norm is summed in another order, and no partial sum is kept between
// microbatches.
bool promises_bits(const Program& program);

// `for_peer` adds the records that ci/fuzz_torch.py compares with, and gives Adam a large eps, so that a gradient which
// is zero but for rounding moves no parameter.
nlohmann::ordered_json scenario_of(const Program& program, bool for_peer = false);

// Two-space indentation, maps of one line where they fit into 116 columns.
std::string yaml_text(const nlohmann::ordered_json& document);

}  // namespace lockstep::fuzz
