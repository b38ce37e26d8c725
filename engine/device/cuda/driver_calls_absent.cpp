// In place of driver_calls.cpp in a build without CUDA.
#include "engine/device/cuda/calls.hpp"
#include "engine/device/cuda/driver_errors.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/cuda/stand_in.hpp"

namespace lockstep::device::cuda {

Calls& driver_calls() {
  if (RecordingCalls* const calls = stand_in()) return *calls;
  throw not_built();
}

}  // namespace lockstep::device::cuda
