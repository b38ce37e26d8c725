#include "harness/scenario/regular_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/resources.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/budget.hpp"

namespace lockstep::scenario {

namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

// A full table of files or a failing disk is an error of the machine, any other reason one of the name.
[[noreturn]] void refuse(const std::string& shown) {
  const int reason = errno;
  const std::string reading = str("cannot read ", shown);
  if (is_exhaustion(reason) || reason == EIO) throw resource_error(reading, reason);
  throw Error(str(reading, ": ", static_cast<const char*>(std::strerror(reason))),
              "check the name and the permissions");
}

void check_kind(const std::string& shown, mode_t mode) {
  if (!S_ISREG(mode)) throw Error(str(shown, " is ", kind_of(mode), ", not a regular file"), "name a file");
}

}  // namespace

RegularFile::RegularFile(const std::string& path, const std::string& shown) : shown_(shown.empty() ? path : shown) {
  struct stat facts = {};
  // The kind is checked before opening too, because opening a device may have an effect.
  if (::stat(path.c_str(), &facts) == 0) check_kind(shown_, facts.st_mode);
  fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd_ < 0) refuse(shown_);
  try {
    if (::fstat(fd_, &facts) != 0) refuse(shown_);
    check_kind(shown_, facts.st_mode);
  } catch (...) {
    ::close(fd_);
    throw;
  }
  bytes_ = facts.st_size;
}

RegularFile::~RegularFile() { ::close(fd_); }

std::string RegularFile::read(std::int64_t most) const {
  const auto too_large = [&](std::int64_t bytes) {
    throw Error(str(shown_, " has ", bytes > most + 1 ? str(bytes) : str("more than ", most), " bytes; at most ", most,
                    " are allowed"));
  };
  if (bytes_ > most) too_large(bytes_);
  Budget::ask(bytes_, [&] { return str("the file ", shown_); });
  std::string text;
  // Some files in /proc report a size of 0 although they have contents.
  constexpr std::size_t min_read = 65536;
  for (;;) {
    const std::size_t at = text.size();
    const std::size_t wanted = at == 0 ? static_cast<std::size_t>(bytes_) + 1 : min_read;
    text.resize(at + wanted);
    const ssize_t got = ::read(fd_, text.data() + at, wanted);
    text.resize(at + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(shown_);
    if (got == 0) return text;
    if (static_cast<std::int64_t>(text.size()) > most) too_large(static_cast<std::int64_t>(text.size()));
  }
}

std::string read_regular_file(const std::string& path, std::int64_t most, const std::string& shown) {
  return RegularFile(path, shown).read(most);
}

}  // namespace lockstep::scenario
