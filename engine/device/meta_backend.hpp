// The backend of meta: sizes without values. Its blocks have no bytes, and its queues drop what they are given after
// the checks of the launch. Internal to engine/device.
#pragma once

#include <memory>

#include "engine/device/backend.hpp"

namespace lockstep::device {

std::unique_ptr<Backend> open_meta(const RankContext& context);

}  // namespace lockstep::device
