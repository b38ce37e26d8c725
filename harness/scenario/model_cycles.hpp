// A model within itself, and a method that calls itself, would never end.
#pragma once

#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

void check_cycles(const std::vector<OwnModel>& models, Diagnostics& diagnostics);

}  // namespace lockstep::scenario
