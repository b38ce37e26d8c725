// How much memory the machine can still give, so that a request beyond it fails with a message. Without the question
// the kernel grants addresses, and ends the rank by SIGKILL when their pages are touched.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::device {

// Bytes: what the kernel counts as available, or what is left below the limit of the control group, if that is less.
// The largest size_t where neither can be read. `root` stands in front of the paths, for tests.
std::size_t available_memory(const std::string& root = "");

}  // namespace lockstep::device
