// Makes a failing program small by changing its tree of choices: items of lists are removed, subtrees become their
// simplest form, numbers become lower. The text is never changed, so every candidate is a valid program.
//
//   const Derivation small = shrink(tree, 300, [&](Derivation& candidate) { return still_fails(candidate); });
#pragma once

#include <functional>

#include "harness/fuzz/derivation.hpp"

namespace lockstep::fuzz {

// `still_fails` derives the program of a candidate, which drops the choices that do not occur, runs it, and says
// whether it fails in the same way. It is called at most `most_runs` times. Returns the smallest tree found; no removal
// or simplification of a single choice makes it smaller, unless the runs were used up.
Derivation shrink(const Derivation& tree, int most_runs, const std::function<bool(Derivation&)>& still_fails);

}  // namespace lockstep::fuzz
