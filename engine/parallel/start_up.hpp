// The first forward of a replicated module: ranks agree on its parameters and take rank 0's values.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

// An all_gather of the count of parameters, a broadcast of types and shapes, one broadcast of the values. Throws Error
// on every rank, naming the parameter, when counts, types, shapes, names or what is frozen differ.
void start_up(comm::ProcessGroup& group, const std::vector<nn::NamedParameter>& parameters, const std::string& owner);

}  // namespace lockstep::parallel
