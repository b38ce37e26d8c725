// The memory that the machine has available. A request beyond it can then fail with a message. Otherwise the kernel
// grants the addresses and kills the rank (SIGKILL) when it touches their pages.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::device {

// In bytes: the smaller of the kernel's MemAvailable and the rest below the limit of the control group (v1 or v2). The
// largest size_t if neither can be read. `root` is a prefix of the paths, for tests.
std::size_t available_memory(const std::string& root = "");

}  // namespace lockstep::device
