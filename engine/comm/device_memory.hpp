// The memory of the ranks that share an accelerator, as one of them addresses it. Ranks that are processes map each
// other's arenas by interprocess handles; ranks that are threads have them at the same addresses.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "engine/comm/control.hpp"
#include "engine/device/device.hpp"

namespace lockstep::comm {

class DeviceMemory {
 public:
  // Publishes the arena of this rank on its devices of this kind. On the rank's own thread.
  DeviceMemory(WorldControl& world, int rank, device::Kind kind);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Where this process has memory of a rank that has published its arena; null for null. The first use of an arena maps
  // it. Any thread of the rank. Throws ResourceError if the device refuses the mapping.
  std::byte* address_of(int rank, const std::byte* pointer);

 private:
  WorldControl& world_;
  const int rank_;
  std::mutex mutex_;
  std::map<int, std::byte*> mapped_;  // of ranks in other processes
};

// Whether all these ranks have published an arena on the same device.
bool share_a_device(const WorldControl& world, const std::int32_t* ranks, int count);

}  // namespace lockstep::comm
