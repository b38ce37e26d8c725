// Naming the limit behind a failed system call.
//
//   if (::fork() < 0) throw resource_error("starting a process", errno);
//   // starting a process: Resource temporarily unavailable; the limit on processes and threads (ulimit -u) is 64
#pragma once

#include <string>

#include "engine/core/error.hpp"

namespace lockstep {

// The machine or one of its limits refuses a resource that the program needs (processes, open files, memory, disk): the
// fault of neither the scenario nor the command.
class ResourceError : public Error {
 public:
  using Error::Error;
};

// The error of an operation that failed with errno `reason`. Names the limit of this process that such a failure comes
// from, with its value, and how to raise it.
ResourceError resource_error(const std::string& operation, int reason);

// True for an errno that says that a resource of the machine ran out or failed (a full disk, a limit), false for one
// that says that the caller asked for something impossible (a path that does not exist).
bool is_exhaustion(int reason);

}  // namespace lockstep
