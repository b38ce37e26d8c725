// The memory of RecordingCalls: files in memory, which other processes can map.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device::cuda {

namespace {
std::byte* map(int file, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}
}  // namespace

std::byte* map_allocation(const SharedAllocation& of) {
  const int file = ::open(str("/proc/", of.process, "/fd/", of.file).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  std::byte* const memory = map(file, of.bytes);
  ::close(file);
  return memory;
}

void* RecordingCalls::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  enter("allocate", str(bytes));
  // A file, so that a handle works in another process.
  const int file = ::memfd_create("stand-in of device memory", MFD_CLOEXEC);
  std::byte* const memory = file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0 ? map(file, bytes) : nullptr;
  if (memory == nullptr) {
    const int reason = errno;
    if (file >= 0) ::close(file);
    throw resource_error(str("allocate of ", bytes, " bytes"), reason);
  }
  allocations_[memory] = {bytes, file, device_of_thread()};
  if (of_program_) protect({memory, bytes});
  return memory;
}

void RecordingCalls::release(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return;
  forget_protected(static_cast<const std::byte*>(memory), found->second.bytes);
  ::munmap(memory, found->second.bytes);
  ::close(found->second.file);
  allocations_.erase(found);
}

void RecordingCalls::pin(void* pages, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  enter("pin", str(bytes));
  LOCKSTEP_CHECK(pinned_.emplace(pages, bytes).second, "pages that are pinned twice");
}

void RecordingCalls::unpin(void* pages) noexcept {
  const std::lock_guard lock(mutex_);
  pinned_.erase(pages);
}

bool RecordingCalls::is_pageable(const void* memory) const {
  const auto holds = [memory](const void* base, std::size_t bytes) {
    return memory >= base && memory < static_cast<const std::byte*>(base) + bytes;
  };
  return std::none_of(pinned_.begin(), pinned_.end(), [&](const auto& of) { return holds(of.first, of.second); }) &&
         std::none_of(opened_.begin(), opened_.end(), [&](const auto& of) { return holds(of.first, of.second); }) &&
         std::none_of(allocations_.begin(), allocations_.end(),
                      [&](const auto& of) { return holds(of.first, of.second.bytes); });
}

void RecordingCalls::require_pinned_as_one(const void* memory, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (const auto& [base, size] : pinned_) {
    const auto* const pages = static_cast<const std::byte*>(base);
    if (begin + bytes <= pages || pages + size <= begin) continue;
    if (begin < pages || pages + size < begin + bytes)
      throw ResourceError("copy: invalid argument: the pages of a range are not pinned by one call", "");
  }
}

// As CUDA does: pageable memory is read before the call returns, and a copy to pageable memory has run then.
void RecordingCalls::copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  std::unique_lock lock(mutex_);
  ModelStream& of = stream_of(stream);
  enter("copy", str("s", of.number, " ", bytes));
  require_pinned_as_one(to, bytes);
  require_pinned_as_one(from, bytes);
  if (is_pageable(from)) {
    const auto* const begin = static_cast<const std::byte*>(from);
    enqueue(stream, {nullptr,
                     [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
                       std::memcpy(to, staged.data(), staged.size());
                     },
                     nullptr});
  } else {
    enqueue(stream, {nullptr, [=] { std::memmove(to, from, bytes); }, nullptr});
  }
  if (is_pageable(to)) wait_until(lock, stream, [&of] { return of.work.empty(); });
}

void RecordingCalls::set_bytes(void* to, int byte, std::size_t bytes, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  enter("set_bytes", str("s", stream_of(stream).number, " ", bytes));
  if (is_pageable(to)) throw ResourceError("set_bytes of memory that is neither on the device nor pinned", "");
  enqueue(stream, {nullptr, [=] { std::memset(to, byte, bytes); }, nullptr});
}

MemoryHandle RecordingCalls::handle_of(void* allocation) {
  const std::lock_guard lock(mutex_);
  enter("handle_of", "");
  LOCKSTEP_CHECK(allocations_.contains(allocation), "the handle of memory that is no allocation");
  const Allocation& found = allocations_.at(allocation);
  const SharedAllocation shared{::getpid(), found.file, found.bytes};
  MemoryHandle handle{};
  static_assert(sizeof shared <= sizeof handle.bytes);
  std::memcpy(handle.bytes, &shared, sizeof shared);
  return handle;
}

void* RecordingCalls::open_handle(const MemoryHandle& handle) {
  const std::lock_guard lock(mutex_);
  enter("open_handle", "");
  SharedAllocation shared;
  std::memcpy(&shared, handle.bytes, sizeof shared);
  std::byte* const memory = map_allocation(shared);
  if (memory == nullptr) throw ResourceError("open_handle: no such memory", "keep its process alive");
  opened_[memory] = shared.bytes;
  if (of_program_) protect({memory, shared.bytes});
  return memory;
}

void RecordingCalls::close_handle(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (!of_program_) log_.emplace_back("close_handle");
  ++counts_["close_handle"];
  const auto found = opened_.find(memory);
  if (found == opened_.end()) return;
  forget_protected(static_cast<const std::byte*>(memory), found->second);
  ::munmap(memory, found->second);
  opened_.erase(found);
}

std::byte* RecordingCalls::reach(const DeviceBytes& bytes) {
  const SharedAllocation& of = bytes.allocation;
  if (of.process == ::getpid()) return reinterpret_cast<std::byte*>(bytes.address);
  std::byte*& base = reached_[{of.process, of.file}];
  if (base == nullptr) {
    base = map_allocation(of);
    if (base == nullptr) return nullptr;
    opened_[base] = of.bytes;
    if (of_program_) protect({base, of.bytes});
  }
  return base + bytes.offset;
}

DeviceBytes RecordingCalls::find(const void* memory, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (const auto& [at, each] : allocations_) {
    const auto* const base = static_cast<const std::byte*>(at);
    if (begin < base || begin >= base + each.bytes) continue;
    const auto offset = static_cast<std::uint64_t>(begin - base);
    if (bytes > each.bytes - offset) break;
    return {{::getpid(), each.file, each.bytes}, offset, reinterpret_cast<std::uintptr_t>(memory)};
  }
  throw ResourceError("invalid argument: the address is not in memory of a device", "give memory of the device");
}

}  // namespace lockstep::device::cuda
