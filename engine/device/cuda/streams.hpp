// The CUDA streams of the process. Streams are never destroyed, because the kernels keep an execution space instance
// per stream until the process ends (engine/device/execution.hpp). A stream whose queue is gone serves the next queue.
#pragma once

#include "engine/device/cuda/calls.hpp"

namespace lockstep::device::cuda {

// A stream on the device, which is the calling thread's. Throws ResourceError if CUDA refuses one.
StreamHandle take_stream(int device);
void give_stream(const Calls& of, int device, StreamHandle stream) noexcept;
void forget_streams();  // of the calls that are being replaced

}  // namespace lockstep::device::cuda
