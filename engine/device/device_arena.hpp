// Where the memory of a rank on an accelerator lies, for transports whose peers map it.
#pragma once

#include <string>

#include "engine/device/arena.hpp"

namespace lockstep::device {

struct DeviceArena {
  HostWorld::Region area;  // addresses of the device, valid in this process
  std::string device_id;   // the same in all processes of the machine
};

// Of the current rank, on its own thread. Opens the backend if it is not open.
DeviceArena device_arena(Kind kind);

}  // namespace lockstep::device
