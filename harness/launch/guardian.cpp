#include "harness/launch/guardian.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::launch {

namespace {

constexpr int death_of_parent = SIGUSR1;
constexpr int most_sweeps = 100;
constexpr useconds_t between_sweeps_us = 10'000;

// Calls `visit` with the name of each entry of the folder.
template <class Visit>
void each_entry(const std::string& folder, Visit&& visit) {
  DIR* entries = ::opendir(folder.c_str());
  if (entries == nullptr) return;  // the process has just ended, or belongs to another user
  while (const dirent* entry = ::readdir(entries)) visit(entry->d_name);
  ::closedir(entries);
}

bool holds(const std::string& process_folder, const struct stat& marker) {
  bool found = false;
  each_entry(process_folder + "/fd", [&](const char* name) {
    struct stat about {};
    found = found || (::stat((process_folder + "/fd/" + name).c_str(), &about) == 0 && about.st_dev == marker.st_dev &&
                      about.st_ino == marker.st_ino);
  });
  return found;
}

// Kills every process that holds the marker. Returns whether there was one.
bool kill_holders(const struct stat& marker) {
  bool any = false;
  each_entry("/proc", [&](const char* name) {
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name, name + std::strlen(name), pid);
    if (error != std::errc() || *end != '\0' || !holds(std::string("/proc/") + name, marker)) return;
    ::kill(pid, SIGKILL);
    any = true;
  });
  return any;
}

[[noreturn]] void watch(pid_t parent, const struct stat& marker) {
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-guard");
  const int null = ::open("/dev/null", O_RDWR);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, standard);
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_PDEATHSIG, death_of_parent);
  sigset_t waited;
  sigemptyset(&waited);
  sigaddset(&waited, death_of_parent);
  // Any process can send the signal, but only the death of the parent changes getppid().
  while (::getppid() == parent) ::sigwaitinfo(&waited, nullptr);
  for (int sweep = 0; sweep < most_sweeps && kill_holders(marker); ++sweep) ::usleep(between_sweeps_us);
  ::_exit(0);
}

}  // namespace

Guardian::Guardian() {
  marker_ = ::memfd_create("lockstep-ranks", MFD_CLOEXEC);
  struct stat about {};
  if (marker_ < 0 || ::fstat(marker_, &about) != 0) return;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) watch(parent, about);
}

Guardian::~Guardian() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (marker_ >= 0) ::close(marker_);
}

}  // namespace lockstep::launch
