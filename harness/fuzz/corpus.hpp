// Which programs are worth keeping: those that bring together choices that no other kept program has together.
#pragma once

#include <cstddef>
#include <vector>

#include "harness/fuzz/derivation.hpp"

namespace lockstep::fuzz {

// The indices of at most `count` trees. Each adds the most pairs of choices that the trees before it lack. Ends early
// when no tree adds a pair.
std::vector<std::size_t> with_most_pairs(const std::vector<Derivation>& trees, std::size_t count);

}  // namespace lockstep::fuzz
