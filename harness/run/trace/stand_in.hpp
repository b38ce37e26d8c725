// Stand-in devices of the dry run. A stand-in is a meta device that represents a real one. Its tensors have shapes and
// no values. `.device`, moves and checks of devices treat them as tensors on the real device.
//
//   const device::Device there = stand_in(device::device_from_name("sim"));
//   real_device_of(there)   // sim:0
#pragma once

#include <string_view>

#include "harness/run/values/scope.hpp"

namespace lockstep::run {

device::Device stand_in(device::Device real);
bool is_stand_in(device::Device device);
// The real device of a stand-in. Any other device is returned as it is.
device::Device real_device_of(device::Device device);

// The device of this name for the steps of a session: in a dry run its stand-in. Otherwise throws UnsupportedError if
// this build lacks the device.
device::Device device_named(const Session& session, std::string_view name);

}  // namespace lockstep::run
