// Statistics of memory without bytes. A meta device with an index above 0 stands in for another device in a program
// that computes shapes only. On request a rank counts the blocks of its stand-ins: by size and purpose, in the same
// statistics and with the same peaks as those of devices that compute.
//
//   device::count_stand_ins(true);
//   const Tensor weight = empty({1024, 1024}, DType::float32, {device::Kind::meta, 1});
//   device::memory_stats().current_total      // 4 MiB, and no page of it exists
#pragma once

#include "engine/device/device.hpp"

namespace lockstep::device {

// For the current rank, off at first. Tensors that exist already are not counted.
void count_stand_ins(bool on);
// Whether the statistics count blocks of this device: it computes, or it is a stand-in that is counted.
bool is_counted(Device device);

}  // namespace lockstep::device
