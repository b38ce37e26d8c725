// In place of nccl_calls.cpp in a build without NCCL. The stand-in of CUDA that the environment asks for has one of
// NCCL.
#include "engine/comm/nccl_calls.hpp"
#include "engine/comm/nccl_stand_in.hpp"
#include "engine/device/cuda/stand_in.hpp"

namespace lockstep::comm::nccl {

namespace {

// It ends with the process: work on streams may outlive every other object.
StandIn& of_process() {
  static StandIn& library = *new StandIn(*device::cuda::stand_in_of_environment());
  return library;
}

}  // namespace

Calls* library_calls() {
  if (device::cuda::replaced_calls() != nullptr || device::cuda::gpus_of_stand_in() == 0) return nullptr;
  return &of_process();
}

}  // namespace lockstep::comm::nccl
