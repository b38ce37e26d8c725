// A file that is open for reading: copies of its bytes, or the bytes themselves, mapped. A mapping is read in place, so
// that bytes can be verified and copied later without being read from the file twice.
//
// Threads: one thread uses an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::state {

class InputFile {
 public:
  // Throws Error for anything but a regular file.
  explicit InputFile(const std::string& path);
  virtual ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::uint64_t bytes() const { return bytes_; }
  // Reads exactly `size` bytes at `offset`. Throws Error if the file ends before.
  virtual void read(std::uint64_t offset, void* to, std::size_t size) const;
  // The `size` bytes at `offset`, valid as long as this object. Throws Error if the file ends before, and if the disk
  // cannot read them. The process ends by a signal if another program then shortens the file.
  virtual const std::byte* view(std::uint64_t offset, std::size_t size);

 private:
  void map();
  void fetch(std::size_t first, std::size_t last);
  [[noreturn]] void refuse_end(std::uint64_t offset, std::size_t size) const;

  std::string path_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
  std::byte* mapped_ = nullptr;
  std::vector<bool> is_present_;  // per part of the mapping: whether its pages were fetched
};

}  // namespace lockstep::state
