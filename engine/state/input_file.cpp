#include "engine/state/input_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/checked.hpp"
#include "engine/core/resources.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace lockstep::state {

namespace {

// The pages of a mapping are fetched in parts: large enough for few calls, small enough to skip what nobody needs.
constexpr std::size_t part_bytes = 64 << 10;
constexpr std::size_t most_parts_per_call = 32;

void require(bool holds, const std::string& path) {
  if (holds) return;
  const int reason = errno;
  const std::string message = str("cannot read `", path, "`: ", std::strerror(reason));
  if (is_exhaustion(reason)) throw ResourceError(message, "check the disk, and the limits of this machine: ulimit -a");
  throw Error(message, "check the path and the disk");
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file_ >= 0, path);
  struct stat status = {};
  if (::fstat(file_, &status) != 0) {
    const int reason = errno;
    ::close(file_);
    errno = reason;
    require(false, path);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(file_);
    throw Error(str("cannot read `", path, "`: it is not a regular file"), "restore the checkpoint from a copy");
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() {
  if (mapped_) ::munmap(mapped_, static_cast<std::size_t>(bytes_));
  ::close(file_);
}

void InputFile::refuse_end(std::uint64_t offset, std::size_t size) const {
  throw Error(str("`", path_, "` ends at byte ", offset, ", and ", size, " more are needed"),
              "restore the checkpoint from a copy");
}

void InputFile::read(std::uint64_t offset, void* to, std::size_t size) const {
  char* next = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t count = ::pread(file_, next, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, path_);
    if (count == 0) refuse_end(offset, size);
    next += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
}

void InputFile::map() {
  void* const mapped = ::mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ, MAP_SHARED, file_, 0);
  require(mapped != MAP_FAILED, path_);
  mapped_ = static_cast<std::byte*>(mapped);
  is_present_.resize(static_cast<std::size_t>((bytes_ + part_bytes - 1) / part_bytes));
}

// Reads the pages of the parts [first, last] into memory. Without this call a disk that fails would end the process by
// a signal, when the memory is first used.
void InputFile::fetch(std::size_t first, std::size_t last) {
  while (first <= last) {
    if (is_present_[first]) {
      ++first;
      continue;
    }
    const bool follows = first > 0 && is_present_[first - 1];  // bytes in order: more will be needed
    const std::size_t most = std::min(first + most_parts_per_call, follows ? is_present_.size() : last + 1);
    std::size_t end = first;
    while (end < most && !is_present_[end]) ++end;
    const std::size_t begin = bounded_product(first, part_bytes);
    const std::size_t size = std::min(bounded_product(end, part_bytes), static_cast<std::size_t>(bytes_)) - begin;
    // Kernels before 5.14 do not know the call: there, the pages are fetched when they are used.
    if (::madvise(mapped_ + begin, size, MADV_POPULATE_READ) != 0 && errno != EINVAL)
      throw Error(str("cannot read `", path_, "`, bytes ", begin, " to ", begin + size,
                      ": the file has become shorter, or the disk has failed (", std::strerror(errno), ")"),
                  "restore the checkpoint from a copy");
    for (; first < end; ++first) is_present_[first] = true;
  }
}

const std::byte* InputFile::view(std::uint64_t offset, std::size_t size) {
  if (size == 0) return nullptr;
  if (offset > bytes_ || size > bytes_ - offset) refuse_end(bytes_, static_cast<std::size_t>(offset + size - bytes_));
  if (!mapped_) map();
  fetch(static_cast<std::size_t>(offset / part_bytes), static_cast<std::size_t>((offset + size - 1) / part_bytes));
  return mapped_ + offset;
}

}  // namespace lockstep::state
