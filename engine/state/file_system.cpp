#include "engine/state/file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/resources.hpp"

namespace lockstep::state {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const char* operation, const std::string& path, int reason) {
  const char* remedy = reason == ENOSPC || reason == EDQUOT                     ? "free space on the disk"
                       : reason == EACCES || reason == EPERM || reason == EROFS ? "make the folder writable"
                                                                                : "check the path and the disk";
  const std::string message = str("cannot ", operation, " `", path, "`: ", std::strerror(reason));
  if (is_exhaustion(reason)) throw ResourceError(message, remedy);
  throw Error(message, remedy);
}

void require(bool holds, const char* operation, const std::string& path) {
  if (!holds) refuse(operation, path, errno);
}

}  // namespace

void FileSystem::make_folder(const std::string& path) {
  require(::mkdir(path.c_str(), 0777) == 0, "make the folder", path);
}

int FileSystem::create(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  require(file >= 0, "create", path);
  return file;
}

void FileSystem::write(int file, const std::string& path, const void* bytes, std::size_t size) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::write(file, next, size);
    if (written < 0 && errno == EINTR) continue;
    require(written >= 0, "write", path);
    next += written;
    size -= static_cast<std::size_t>(written);
  }
}

void FileSystem::sync(int file, const std::string& path) { require(::fsync(file) == 0, "flush", path); }

void FileSystem::begin_sync(int file, std::uint64_t offset, std::uint64_t size) {
  ::sync_file_range(file, static_cast<off64_t>(offset), static_cast<off64_t>(size), SYNC_FILE_RANGE_WRITE);
}

void FileSystem::close(int file, const std::string& path) { require(::close(file) == 0, "close", path); }

void FileSystem::sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(folder >= 0, "open the folder", path);
  const int result = ::fsync(folder), reason = errno;
  ::close(folder);
  if (result != 0) refuse("flush the folder", path, reason);
}

void FileSystem::rename(const std::string& from, const std::string& to) {
  require(::rename(from.c_str(), to.c_str()) == 0, "rename", from);
}

void FileSystem::exchange(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == EINVAL || errno == ENOSYS)
    throw Error(str("the file system of `", b, "` cannot swap two folders at once"),
                "save under a new name, and remove the old checkpoint afterwards");
  refuse("replace", b, errno);
}

void FileSystem::remove_file(const std::string& path) { require(::unlink(path.c_str()) == 0, "remove", path); }

void FileSystem::remove_folder(const std::string& path) {
  require(::rmdir(path.c_str()) == 0, "remove the folder", path);
}

std::unique_ptr<InputFile> FileSystem::open(const std::string& path) { return std::make_unique<InputFile>(path); }

FileSystem& real_files() {
  static FileSystem files;
  return files;
}

void write_file(FileSystem& files, const std::string& path, const std::string& text) {
  const int file = files.create(path);
  try {
    files.write(file, path, text.data(), text.size());
    files.sync(file, path);
  } catch (...) {
    ::close(file);
    throw;
  }
  files.close(file, path);
}

void remove_folder_of_files(FileSystem& files, const std::string& path) {
  if (!exists(path)) return;
  for (const std::string& name : names_in(path)) files.remove_file(str(path, "/", name));
  files.remove_folder(path);
}

// ---- reading ----
namespace {

fs::file_status status_of(const std::string& path) {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(path, failed);
  if (status.type() == fs::file_type::none) refuse("look for", path, failed.value());
  return status;
}

}  // namespace

bool exists(const std::string& path) { return fs::exists(status_of(path)); }
bool is_folder(const std::string& path) { return fs::is_directory(status_of(path)); }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) names.push_back(entry.path().filename().string());
  if (failed) refuse("list", folder, failed.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::uint64_t bytes_of(const std::string& path) { return InputFile(path).bytes(); }

std::string read_text(const std::string& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace lockstep::state
