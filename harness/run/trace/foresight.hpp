// Finds errors of a case before it runs: paths that match nothing, members that a module does not have, unknown kinds
// of events, and a case in which no step checks anything.
//
//   scenario::Diagnostics found;
//   check_before_launch(cases, found);      // every error with its place and the nearest word
//
// The steps are followed without running them. Models are built on the meta device. A name has a value if parameters,
// modules and plain values alone decide it; otherwise it is unknown. Steps whose conditions need unknown names are not
// checked, so that no case is rejected that could run.
#pragma once

#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::run {

// Adds every error found to `diagnostics`. Cases that are skipped or expected to fail are not checked.
void check_before_launch(const std::vector<scenario::Case>& cases, scenario::Diagnostics& diagnostics);

}  // namespace lockstep::run
