// Every change that a save makes to the file system goes through this interface: each function is one operation. A test
// can count the operations, and end the process or fail at any of them.
//
// All functions throw Error naming the operation, the path and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::state {

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual void make_folder(const std::string& path);
  virtual int create(const std::string& path);  // a new file for writing; a descriptor; Error if the path exists
  virtual void write(int file, const std::string& path, const void* bytes, std::size_t size);
  virtual void sync(int file, const std::string& path);  // returns when the bytes are on the disk
  virtual void close(int file, const std::string& path);
  virtual void sync_folder(const std::string& path);  // returns when names in the folder are on the disk
  virtual void rename(const std::string& from, const std::string& to);
  virtual void exchange(const std::string& a, const std::string& b);  // swaps two folders at once
  virtual void remove_file(const std::string& path);
  virtual void remove_folder(const std::string& path);  // an empty one
};
FileSystem& real_files();

// Writes a file and flushes it.
void write_file(FileSystem& files, const std::string& path, const std::string& text);
// Removes a folder of files, if it is there. Throws Error if it contains another folder.
void remove_folder_of_files(FileSystem& files, const std::string& path);

// ---- reading; no operation of a save ----
bool exists(const std::string& path);
std::vector<std::string> names_in(const std::string& folder);  // sorted
std::uint64_t bytes_of(const std::string& path);               // throws Error for anything but a regular file
std::string read_text(const std::string& path);

// A file that is open for reading.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::uint64_t bytes() const { return bytes_; }
  // Reads exactly `size` bytes at `offset`. Throws Error if the file ends before.
  void read(std::uint64_t offset, void* to, std::size_t size) const;

 private:
  std::string path_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::state
