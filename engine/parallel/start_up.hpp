// The start-up of replicate, at the first forward of a module, and of tensor_parallel: the ranks compare their
// parameters, and all get the values of rank 0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

// Makes one all-gather of the number of parameters, one broadcast of types and shapes, and one broadcast of the values
// per device. Throws Error on every rank, with the name of the parameter, when the number of parameters, a type, shape
// or name, or requires_grad differs. Parameters on meta have no values to send. `owner`: the name of the module, for
// log and messages. `api`: the caller, for messages.
void start_up(comm::ProcessGroup& group, const std::vector<nn::NamedParameter>& parameters, const std::string& owner,
              std::string_view api);

}  // namespace lockstep::parallel
