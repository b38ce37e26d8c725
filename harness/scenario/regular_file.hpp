// Reading files that a user names: a regular file of bounded size, or an error that names it. Nothing else is waited
// for: a pipe, a socket or a device is refused before a byte of it is read.
//
//   std::string text = read_regular_file("mine.yaml", limits::file_bytes);
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::scenario {

// An open regular file. Throws Error for one that cannot be opened, a folder, a pipe, a socket, a device.
class RegularFile {
 public:
  // `shown` is its name in messages; empty: the path.
  explicit RegularFile(const std::string& path, const std::string& shown = {});
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  std::int64_t bytes() const { return bytes_; }  // when it was opened
  // All of it. Throws Error when there are more than `most` bytes, also of a file that grows meanwhile, and when
  // reading fails. The bytes are asked of the budget first.
  std::string read(std::int64_t most) const;

 private:
  std::string shown_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;
};

std::string read_regular_file(const std::string& path, std::int64_t most, const std::string& shown = {});

}  // namespace lockstep::scenario
