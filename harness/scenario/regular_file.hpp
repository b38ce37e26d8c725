// Reads files that a user names. Only regular files of bounded size are accepted; a pipe, a socket or a device is
// refused before a byte of it is read, so that reading never blocks.
//
//   std::string text = read_regular_file("mine.yaml", limits::file_bytes);
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::scenario {

// An open regular file. The constructor throws Error for a file that cannot be opened, and for a folder, a pipe, a
// socket or a device.
class RegularFile {
 public:
  // `shown` is the name of the file in messages; empty: the path.
  explicit RegularFile(const std::string& path, const std::string& shown = {});
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  std::int64_t bytes() const { return bytes_; }  // the size when the file was opened
  // The contents of the file. Throws Error when they have more than `most` bytes, also when the file grows while it is
  // read, and when reading fails; throws BudgetError when they exceed the thread's budget.
  std::string read(std::int64_t most) const;

 private:
  std::string shown_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;
};

std::string read_regular_file(const std::string& path, std::int64_t most, const std::string& shown = {});

}  // namespace lockstep::scenario
