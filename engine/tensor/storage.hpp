// A storage: the identity behind tensors. Its memory can be released and attached again without a version bump, and
// views and saved tensors follow it (that is how parameters are gathered and resharded). Reading a released one is an
// error that names what it belongs to and in what state.
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
  // The block; throws Error naming owner and state when released, or when the device is meta.
  device::Memory& memory() const;
  const device::MemoryPtr& memory_ptr() const { return memory_; }

  void release() { memory_.reset(); }
  void attach(device::MemoryPtr memory);  // of the same device and at least bytes()

  // In-place changes count up; autograd compares what it saved.
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
