// The transport of ranks that share an accelerator: each member reads and writes the memory of all on its own stream.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/comm/reduce.hpp"
#include "engine/device/execution.hpp"
#include "engine/kernels/members.hpp"

namespace lockstep::comm {

// Enqueues a reduction of memory that the device can access, at most kernels::max_members inputs.
void reduce_on_device(device::Execution on, const Reduction& reduction, std::int64_t begin, std::int64_t count);

// Such reductions run by kernels::reduce_members(), or by what a test without a GPU has put in its
// place; null: the kernel again.
using ReduceOnDevice =
    std::function<void(device::Execution, const kernels::MemberBuffers&, std::int64_t begin, std::int64_t count)>;
void replace_reduce_on_device(ReduceOnDevice stand_in);

}  // namespace lockstep::comm
