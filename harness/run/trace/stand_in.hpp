// Devices of the dry run. A stand-in is a meta device that stands for another one: its tensors have a shape and no
// values, and they answer `.device`, moves and checks of devices as tensors of that device do.
//
//   const device::Device there = stand_in(device::device_from_name("sim"));
//   stood_for(there)    // sim:0
#pragma once

#include <string_view>

#include "harness/run/values/scope.hpp"

namespace lockstep::run {

device::Device stand_in(device::Device real);
bool is_stand_in(device::Device device);
device::Device stood_for(device::Device device);  // of a stand-in; any other device is itself

// The device of this name for the steps of a session: a stand-in in a dry run. Throws UnsupportedError in a run where
// this build lacks it.
device::Device device_named(const Session& session, std::string_view name);

}  // namespace lockstep::run
