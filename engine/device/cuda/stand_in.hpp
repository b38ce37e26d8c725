// A stand-in of CUDA for whole programs, on machines without a GPU. The environment asks for it:
//
//   LOCKSTEP_CUDA=stand-in      a machine with one GPU, which the ranks share
//   LOCKSTEP_CUDA=stand-in:4    a machine with four GPUs: a GPU per rank for up to four ranks, connected by a stand-in
//   of
//                               NCCL (comm/nccl_stand_in.hpp)
//
// The backend, its queues and the transports then work as on GPUs, over a model of streams and events on the host
// (recording_calls.hpp). Kernels run their portable bodies when their stream reaches them, those with teams in teams of
// three threads that take turns (kernels/teams_in_turn.cpp), so that a missing barrier can show in the results. The
// model is lazy: work runs only when something waits for it, so that a missing wait shows there, too.
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
inline constexpr int max_gpus_of_stand_in = 64;

// The number of GPUs for which the environment asks; 0 if it asks for no stand-in. Throws Error for another value of
// the variable.
int gpus_of_stand_in();
// "stand-in", "stand-in:4": how the environment asks for so many GPUs.
std::string stand_in_setting(int gpus);
// "stand-in of CUDA on the host", and its GPUs if there are several: for reports.
std::string describe_stand_in(int gpus);

// The one that the environment asks for, or null. One per process.
RecordingCalls* stand_in_of_environment();
// The stand-in of CUDA in this process: the one that a test has set, else stand_in_of_environment().
RecordingCalls* stand_in();

// The work of a kernel, in order on the stream. Throws UnsupportedError without a stand-in, with the label of the
// kernel.
void launch_on_stand_in(const char* label, StreamHandle stream, std::function<void()> work);
// Returns when the stream is empty. Throws like launch_on_stand_in().
void wait_for_stand_in(const char* label, StreamHandle stream);

}  // namespace lockstep::device::cuda
