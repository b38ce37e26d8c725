// The description of a rank's state that all ranks exchange before a save: keys, types, sizes, held boxes, digests of
// replicated values, plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/state/plan.hpp"
#include "engine/state/tree.hpp"

namespace lockstep::state {

struct Description {
  std::vector<HeldTensor> tensors;
  std::map<std::string, std::string> values;  // JSON texts by key
};
// The description of the current rank's tree. Waits for the tensors' streams where it needs a digest. Throws Error for
// meta tensors and partial placements.
Description describe(const Tree& tree);

std::string text_of(const Description& description);
Description description_from_text(const std::string& text);

// The values of all ranks. Throws Error, naming the ranks, if two ranks have different values of one key.
std::map<std::string, std::string> merge_values(const std::vector<Description>& of_ranks);

}  // namespace lockstep::state
