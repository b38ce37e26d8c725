// The ranks behind the process group of a planned collective. A plan names a group by its mesh axis and its size; the
// meshes of the case tell which ranks these are.
#pragma once

#include <string>
#include <vector>

#include "engine/layout/mesh_shape.hpp"

namespace lockstep::run {

// The world ranks of the group of `rank` along the axis of this name and size, of the newest such mesh. The name "" is
// a group over several axes: the newest mesh with axes of that product decides. Empty if no mesh has such a group.
std::vector<int> members_of(const std::vector<layout::MeshShape>& meshes, int rank, const std::string& axis, int size);

}  // namespace lockstep::run
