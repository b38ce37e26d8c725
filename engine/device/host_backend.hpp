// The backends whose memory is the host's: cpu, which runs inline, and sim, which simulates an accelerator with worker
// threads and pools of its own. Internal to engine/device.
#pragma once

#include <memory>

#include "engine/device/backend.hpp"

namespace lockstep::device {

std::unique_ptr<Backend> open_cpu(const RankContext& context);
std::unique_ptr<Backend> open_sim(const RankContext& context);

}  // namespace lockstep::device
