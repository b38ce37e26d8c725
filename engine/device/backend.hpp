// A backend: one kind of device, as everything in engine/device sees it. Pools, statistics, the order check, poison and
// traces stand above it and exist once.
//
// To add a backend: implement Backend and its Queue, give it a row in backends.cpp, and instantiate the conformance
// tests (backend_conformance_test.cpp) for it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine/core/rank_context.hpp"
#include "engine/device/activity.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/device/pool.hpp"
#include "engine/device/queue.hpp"

namespace lockstep::device {

class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // The memory that this rank's pools take their chunks from, of all its devices of this kind. An undefined arena:
  // blocks have sizes and no bytes.
  virtual Arena& arena() = 0;
  // Names the device that the arena lies on, the same in all processes of the machine. Ranks on the same device can map
  // each other's arenas by their handles (cuda/calls.hpp). Empty where a launcher maps the arenas.
  virtual std::string device_id() const { return ""; }
  // A new queue for a stream of this name. Its threads count in `activity`.
  virtual std::shared_ptr<Queue> open_queue(const std::string& name, Activity& activity) = 0;
  // In a body, with its execution. copy() copies bytes; one of the two blocks may be the host's. fill() sets each byte
  // of a block of the device.
  virtual void copy(const Execution& on, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void fill(const Execution& on, std::byte* to, std::byte value, std::size_t bytes) = 0;
  // Prepares pages of the host's memory for asynchronous copies to and from the devices of this kind, until unpin()
  // with the same pages. The pages are populated. pin() throws Error with the system's reason if it refuses.
  virtual void pin(HostWorld::Region pages) = 0;
  virtual void unpin(HostWorld::Region pages) noexcept = 0;
  // The host's own copies, outside of launches or in a body, with the execution of a stream. They see the kernels that
  // were issued before on this stream. No other launch that uses the block runs meanwhile.
  virtual void read(const Execution& on, void* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void write(const Execution& on, std::byte* to, const void* from, std::size_t bytes) = 0;
};

// A rank's backend of this kind. Throws UnsupportedError for a kind that this build lacks.
std::unique_ptr<Backend> open_backend(Kind kind, const RankContext& context);

}  // namespace lockstep::device
