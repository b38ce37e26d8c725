// Every change that a save makes to the file system goes through this interface: each function is one operation. A test
// can count the operations, and end the process or fail at any of them. A load opens its files here, so that a test can
// count the bytes that it reads.
//
// All functions throw Error naming the operation, the path and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/state/input_file.hpp"

namespace lockstep::state {

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual void make_folder(const std::string& path);
  virtual int create(const std::string& path);  // a new file for writing; a descriptor; Error if the path exists
  virtual void write(int file, const std::string& path, const void* bytes, std::size_t size);
  virtual void sync(int file, const std::string& path);  // returns when the bytes are on the disk
  // The disk may begin to write these bytes. A hint, which cannot fail, and no operation.
  virtual void begin_sync(int file, std::uint64_t offset, std::uint64_t size);
  virtual void close(int file, const std::string& path);
  virtual void sync_folder(const std::string& path);  // returns when names in the folder are on the disk
  virtual void rename(const std::string& from, const std::string& to);
  virtual void exchange(const std::string& a, const std::string& b);  // swaps two folders at once
  virtual void remove_file(const std::string& path);
  virtual void remove_folder(const std::string& path);  // an empty one

  // Opens a file of a checkpoint for a load. It changes nothing, and is no operation of a save.
  virtual std::unique_ptr<InputFile> open(const std::string& path);
};
FileSystem& real_files();

// Writes a file and flushes it.
void write_file(FileSystem& files, const std::string& path, const std::string& text);
// Removes a folder of files, if it is there. Throws Error if it contains another folder.
void remove_folder_of_files(FileSystem& files, const std::string& path);

// ---- reading; no operation of a save ----
bool exists(const std::string& path);
bool is_folder(const std::string& path);                       // a link to one is none
std::vector<std::string> names_in(const std::string& folder);  // sorted
std::uint64_t bytes_of(const std::string& path);               // throws Error for anything but a regular file
std::string read_text(const std::string& path);

}  // namespace lockstep::state
