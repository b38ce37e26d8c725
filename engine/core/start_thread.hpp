// Starts threads of the program; that the system refuses one is an error with a name.
//
//   worker_ = start_thread("starting the thread of a stream", [this] { run_worker(); });
#pragma once

#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/core/resources.hpp"

namespace lockstep {

// `what` begins the message. Throws ResourceError if the system has no thread, or no memory for one.
template <class F>
std::thread start_thread(std::string_view what, F&& body) {
  try {
    return std::thread(std::forward<F>(body));
  } catch (const std::system_error& refused) {
    throw resource_error(std::string(what), refused.code().value());
  } catch (const std::bad_alloc&) {
    throw resource_error(std::string(what), ENOMEM);
  }
}

}  // namespace lockstep
