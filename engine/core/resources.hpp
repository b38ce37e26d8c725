// Errors of failed system calls that name the limit behind the failure.
//
//   if (::fork() < 0) throw resource_error("starting a process", errno);
//   // starting a process: Resource temporarily unavailable; the limit on processes and threads (ulimit -u) is 64
#pragma once

#include <exception>
#include <string>

#include "engine/core/error.hpp"

namespace lockstep {

// The machine or one of its limits refused a resource (processes, open files, memory, disk). Neither the scenario nor
// the command is at fault.
class ResourceError : public Error {
 public:
  using Error::Error;
};

// The error for an operation that failed with errno `reason`. Its message names the limit of this process that causes
// such a failure and the value of the limit; its remedy says how to raise it.
ResourceError resource_error(const std::string& operation, int reason);

// True for an errno that reports an exhausted or failed resource (a full disk, a limit). False for an errno that
// reports an invalid request (a path that does not exist).
bool is_exhaustion(int reason);

// The text of any error for people, with a remedy. An error of the standard library (no memory, a file, a thread) gets
// the same words as a ResourceError.
std::string text_of(const std::exception& error);

// True when the machine, not the scenario or the command, is at fault: a ResourceError, an error of the standard
// library about memory, files or threads, or an InternalError.
bool is_of_machine(const std::exception& error);

}  // namespace lockstep
