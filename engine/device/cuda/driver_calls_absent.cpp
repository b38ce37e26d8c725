// In place of driver_calls.cpp in a build without CUDA.
#include "engine/device/cuda/calls.hpp"
#include "engine/device/cuda/driver_errors.hpp"

namespace lockstep::device::cuda {

Calls& driver_calls() { throw not_built(); }

}  // namespace lockstep::device::cuda
