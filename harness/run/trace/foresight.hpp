// What is wrong with a case and can be seen before it runs: paths that match nothing, members that a module has not,
// unknown kinds of events, and a case in which no step checks anything.
//
//   scenario::Diagnostics found;
//   check_before_launch(cases, found);      // every error with its place and the nearest word
//
// The steps are followed, not run: models are built on the meta device, names stand for what they are bound to as far
// as that hangs on parameters, modules and plain values alone. Whatever hangs on a run is left out, so that nothing is
// refused that a run might accept: such names are unknown, and with them the steps whose conditions they decide.
#pragma once

#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::run {

// Cases that are skipped, or expected to fail, are left out.
void check_before_launch(const std::vector<scenario::Case>& cases, scenario::Diagnostics& diagnostics);

}  // namespace lockstep::run
