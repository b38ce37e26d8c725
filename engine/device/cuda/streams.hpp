// The CUDA streams of the process. Streams are never destroyed, because the kernels keep an execution space instance
// per stream until the process ends (engine/device/execution.hpp). A stream whose queue is gone serves the next queue.
#pragma once

#include <string>

#include "engine/device/cuda/calls.hpp"

namespace lockstep::device::cuda {

// A stream on the device, which is the calling thread's. Throws ResourceError if CUDA refuses one.
StreamHandle take_stream(int device);
void give_stream(const Calls& of, int device, StreamHandle stream) noexcept;
void forget_streams();  // of the calls that are being replaced
// Why this process may run no further ranks, once the contexts of its ranks are gone: a stream is still in use, because
// it was busy at the end of its rank or outlives it; or CUDA reports an error that ends its context. Empty: it may.
// Starts CUDA on no GPU that no rank has used.
std::string why_no_further_ranks();

}  // namespace lockstep::device::cuda
