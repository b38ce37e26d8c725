// A stand-in of CUDA for whole programs, on machines without a GPU: LOCKSTEP_CUDA=stand-in. The backend, its queues and
// the transport of ranks that share a GPU then work as on a GPU, over a model of streams and events on the host
// (recording_calls.hpp). Kernels run their portable bodies when their stream reaches them. The model is lazy: work runs
// only when something waits for it, so that a missing wait shows in the results.
//
// It shows nothing about the speed, the memory or the arithmetic of a GPU. Builds with CUDA do not have it.
#pragma once

#include <functional>
#include <string>

#include "engine/device/cuda/calls.hpp"

namespace lockstep::device::cuda {

class RecordingCalls;

inline constexpr const char* stand_in_variable = "LOCKSTEP_CUDA";
inline constexpr const char* stand_in_value = "stand-in";

// Whether the environment asks for the stand-in. Throws Error for another value of the variable.
bool stand_in_is_asked_for();
// What takes the place of CUDA in this process: what a test has put there, else the one that the environment asks for,
// else null.
RecordingCalls* stand_in();

// The work of a kernel, in order on the stream. Throws UnsupportedError without a stand-in, with the label of the
// kernel.
void launch_on_stand_in(const char* label, StreamHandle stream, std::function<void()> work);
// Returns when the stream is empty. Throws like launch_on_stand_in().
void wait_for_stand_in(const char* label, StreamHandle stream);

}  // namespace lockstep::device::cuda
