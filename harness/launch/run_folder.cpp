#include "harness/launch/run_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/resources.hpp"

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "lockstep-run-";

std::string temporary_folder() {
  const char* chosen = std::getenv("TMPDIR");
  const std::string folder = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
  std::error_code error;
  const bool is_there = fs::is_directory(folder, error);
  if (is_exhaustion(error.value()))
    throw resource_error(str("looking for the temporary folder ", folder), error.value());
  if (!is_there)
    throw ResourceError(str("the temporary folder ", folder, " does not exist or is not a folder"),
                        "set TMPDIR to a folder that can be written");
  return folder;
}

[[noreturn]] void fail(const std::string& path, int reason) {
  const ResourceError error = resource_error(str("creating the temporary folder ", path), reason);
  if (reason == EMFILE || reason == ENFILE) throw ResourceError(error);
  throw ResourceError(error.message(), "free space there, or set TMPDIR to a folder that can be written");
}

// Opens a folder of this user without following a link. Returns -1 when it is not one.
int open_own_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat about {};
  if (descriptor >= 0 && ::fstat(descriptor, &about) == 0 && about.st_uid == ::geteuid()) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  return -1;
}

// Locks a folder that was just created. Returns -1 when another run has swept it away in the meantime.
int lock_new_folder(const std::string& path) {
  const int descriptor = open_own_folder(path);
  if (descriptor < 0) {
    if (errno == ENOENT) return -1;
    fail(path, errno);
  }
  struct stat about {};
  const bool taken = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const bool is_known = ::fstat(descriptor, &about) == 0;
  const int reason = errno;
  if (!taken && is_known && about.st_nlink > 0) return descriptor;
  ::close(descriptor);
  if (!is_known) fail(path, reason);
  return -1;
}

// Whether a RunFolder has made the folder: mkdtemp() named it and closed it to others, and it holds folders of cases
// alone. The name of a user's folder may begin alike.
bool is_of_a_run(int descriptor, const fs::path& path) {
  constexpr std::size_t num_random = 6;
  struct stat about {};
  if (path.filename().string().size() != prefix.size() + num_random) return false;
  if (::fstat(descriptor, &about) != 0 || (about.st_mode & 0777) != 0700) return false;
  std::error_code error;
  for (fs::directory_iterator each(path, error), end; !error && each != end; each.increment(error))
    if (!each->path().filename().string().starts_with("case-")) return false;
  return !error;
}

}  // namespace

RunFolder::RunFolder() {
  const std::string parent = temporary_folder();
  sweep_run_folders(parent);
  while (lock_ < 0) {
    std::string path = (fs::path(parent) / str(prefix, "XXXXXX")).string();
    if (::mkdtemp(path.data()) == nullptr) fail(path, errno);
    tree_.emplace(std::move(path));
    lock_ = lock_new_folder(tree_->path());
  }
}

RunFolder::RunFolder(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  std::error_code ignored;  // mkdir() gives the reason
  fs::create_directories(parent, ignored);
  sweep_run_folders(parent);
  while (lock_ < 0) {
    if (::mkdir(path.c_str(), 0700) != 0) fail(path, errno);
    if (!tree_) tree_.emplace(path);
    lock_ = lock_new_folder(path);
  }
}

RunFolder::~RunFolder() {
  tree_.reset();
  ::close(lock_);
}

CaseFolder::CaseFolder(const RunFolder& run, const std::string& name) : tree_(str(run.path(), "/", name)) {
  if (::mkdir(path().c_str(), 0700) != 0) fail(path(), errno);
}

bool FollowedFolder::enter(const std::string& path) {
  if (path == path_) return is_seen_;
  case_.reset();
  path_ = path;
  std::error_code ignored;
  is_seen_ = fs::exists(path, ignored);
  if (is_seen_) return true;
  try {
    const fs::path folder(path);
    if (!run_) run_.emplace(folder.parent_path().string());
    case_.emplace(*run_, folder.filename().string());
  } catch (const ResourceError&) {  // most cases write no file
  }
  return false;
}

int sweep_run_folders(const std::string& parent) {
  int removed = 0;
  std::error_code error;
  for (fs::directory_iterator each(parent, error), end; !error && each != end; each.increment(error)) {
    if (!each->path().filename().string().starts_with(prefix)) continue;
    const int descriptor = open_own_folder(each->path().string());
    if (descriptor < 0) continue;
    std::error_code ignored;
    if (is_of_a_run(descriptor, each->path()) && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
        fs::remove_all(each->path(), ignored) > 0)
      ++removed;
    ::close(descriptor);
  }
  return removed;
}

}  // namespace lockstep::launch
