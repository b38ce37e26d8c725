// Finds models that contain themselves and methods that call themselves: building or calling them would never end.
// Internal to this layer.
#pragma once

#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

// Reports each such model and method.
void check_cycles(const std::vector<ModelDefinition>& models, Diagnostics& diagnostics);

}  // namespace lockstep::scenario
