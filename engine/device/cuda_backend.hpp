// The backend of Nvidia GPUs. Internal to engine/device. A build without it has cuda_backend_absent.cpp.
#pragma once

#include <memory>

#include "engine/device/backend.hpp"

namespace lockstep::device {

// Throws UnsupportedError when the build has no such backend.
std::unique_ptr<Backend> open_cuda(const RankContext& context);
void require_cuda();

}  // namespace lockstep::device
