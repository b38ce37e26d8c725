// A storage: the identity behind tensors. Its memory can be released and attached again without a version bump. Views
// and saved tensors then see the new memory, which is how parameters are unsharded and resharded. Reading a released
// storage is an error that names its owner and state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/device.hpp"

namespace lockstep {

class Storage {
 public:
  Storage(device::Device device, std::size_t bytes, device::MemoryPtr memory)
      : device_(device), bytes_(bytes), memory_(std::move(memory)) {}

  device::Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  bool has_memory() const { return memory_ != nullptr || bytes_ == 0; }
  // Throws Error that names owner and state when the memory is released, when the storage is empty, and on meta.
  device::Memory& memory() const;
  const device::MemoryPtr& memory_ptr() const { return memory_; }

  void release() { memory_.reset(); }
  // Throws Error when `memory` is on another device or smaller than bytes().
  void attach(device::MemoryPtr memory);

  // In-place operations increment it. Autograd compares it with the version at which it saved a tensor.
  std::uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

  std::string owner;  // "layers.0.weight", for messages
  std::string state;  // "resharded after forward", for messages

 private:
  device::Device device_;
  std::size_t bytes_ = 0;
  device::MemoryPtr memory_;
  std::uint64_t version_ = 0;
};
using StoragePtr = std::shared_ptr<Storage>;

}  // namespace lockstep
