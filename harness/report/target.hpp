// The path of a file to write, as a user gives it.
#pragma once

#include <string>

namespace lockstep::report {

// Throws Error if no file can be written to the path because a folder, a pipe or a socket is there, or a device unless
// these are allowed. A device such as /dev/null is written in place.
void check_target(const std::string& path, bool allows_device = true);

}  // namespace lockstep::report
