// The layouts of parameters as a table, for `lockstep explain`.
#pragma once

#include <string>

#include "harness/run/values/scope.hpp"

namespace lockstep::run {

// A row per parameter of each model of the scope that has sharded parameters: its path, its global sizes, its
// placements with the mesh, and the sizes that this rank holds. Empty if no model has one. A long table ends with the
// number of rows that are left out.
std::string layout_table(const Scope& scope);

}  // namespace lockstep::run
