// The path of a file to write, as a user gives it.
#pragma once

#include <string>

namespace lockstep::report {

// Throws Error if no file can be written to the path because a folder, a pipe, a socket or a block device is there. A
// character device such as /dev/null is written in place.
void check_target(const std::string& path);

}  // namespace lockstep::report
