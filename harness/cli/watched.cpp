#include "harness/cli/watched.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "harness/cli/standard_streams.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::cli {

namespace {

using scenario::Progress;
using Clock = std::chrono::steady_clock;

constexpr int poll_ms = 100;  // between looks at the clocks; the end of a child wakes the poll at once
constexpr int no_memory_code = 113;

std::unique_ptr<Progress, void (*)(Progress*)> map_progress() {
  void* page = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw resource_error("mapping the page in which a child reports its progress", errno);
  return {new (page) Progress, [](Progress* progress) { ::munmap(progress, sizeof *progress); }};
}

void limit_heap([[maybe_unused]] std::int64_t mebibytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlim_t heap_bytes = static_cast<rlim_t>(mebibytes) << 20;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_DATA, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > heap_bytes)) {
    limit.rlim_cur = heap_bytes;
    ::setrlimit(RLIMIT_DATA, &limit);
  }
#endif
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
}

std::int64_t heap_limit_mb = 0;  // of this process, which is a watched child
bool has_reached_limit = false;  // when an allocation failed, the heap held a good part of the limit

// Distinguishes a file that asks for too much from a machine that refuses memory. It is asked when an allocation fails,
// because the heap has shrunk once the error is caught. Allocates nothing.
bool is_near_limit() {
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[256] = "";
  const ssize_t size = ::read(file, text, sizeof text - 1);
  ::close(file);
  long data_pages = 0;
  if (size <= 0 || std::sscanf(text, "%*d %*d %*d %*d %*d %ld", &data_pages) != 1) return false;
  return data_pages * ::sysconf(_SC_PAGESIZE) > (heap_limit_mb << 20) / 4;
}

[[noreturn]] void note_refused_memory() {
  has_reached_limit = is_near_limit();
  throw std::bad_alloc();
}

std::string no_memory_text(const Progress& progress, const WatchLimits& limits) {
  return str(place_of(progress), ": evaluating it takes more than ", limits.heap_mb, " MiB of memory");
}

// The end of a watched child.
struct End {
  int status = 0;
  bool too_long = false;
};

double cpu_seconds(pid_t child, const Progress& progress) {
  clockid_t clock = {};
  timespec now = {};
  if (::clock_getcpuclockid(child, &clock) != 0 || ::clock_gettime(clock, &now) != 0) return 0.0;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - progress.cpu_ns);
}

// Waits until the child closes its end of the pipe, or kills it at a limit.
End watch(pid_t child, int pipe, const Progress& progress, const WatchLimits& limits) {
  End end;
  std::int64_t file = -1;
  Clock::time_point begun;
  for (;;) {
    pollfd wanted = {pipe, POLLIN, 0};
    const int ready = ::poll(&wanted, 1, poll_ms);
    if (ready > 0) break;
    if (file != progress.num_files) {
      file = progress.num_files;
      begun = Clock::now();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    if (cpu_seconds(child, progress) < limits.cpu_seconds && seconds < limits.seconds) continue;
    end.too_long = true;
    ::kill(child, SIGKILL);
    break;
  }
  while (::waitpid(child, &end.status, 0) < 0 && errno == EINTR) {
  }
  return end;
}

// The error of the end; empty when the child ended by itself.
std::string complaint(const End& end, const Progress& progress, const WatchLimits& limits) {
  const std::string place = place_of(progress);
  if (end.too_long)
    return str(place, ": evaluating it took longer than a file may before launch (",
               scenario::limits::evaluation_seconds, " s)");
  if (WIFSIGNALED(end.status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(end.status));
    return str(place, ": evaluating it ended by SIG", name ? name : "?");
  }
  if (WEXITSTATUS(end.status) == no_memory_code) return no_memory_text(progress, limits);
  return {};
}

struct Fork {
  pid_t child = -1;  // 0: this is the child
  int pipe = -1;     // the parent's end
};

Fork fork_watched(Progress& progress, const WatchLimits& limits) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw resource_error("making a pipe", errno);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  Fork made;
  made.child = ::fork();
  if (made.child < 0) {
    const int reason = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw resource_error("starting a process", reason);
  }
  if (made.child > 0) {
    ::close(ends[1]);
    made.pipe = ends[0];
    return made;
  }
  // The child's end of the pipe stays open until the child has ended.
  ::close(ends[0]);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  limit_heap(limits.heap_mb);
  heap_limit_mb = limits.heap_mb;
  std::set_new_handler(note_refused_memory);
  share_progress(&progress);
  return made;
}

}  // namespace

int in_watched_child(const std::function<int()>& command, const WatchLimits& limits) {
  const auto progress = map_progress();
  const Fork made = fork_watched(*progress, limits);
  if (made.child == 0) {
    try {
      const int code = command();
      scenario::share_progress(nullptr);
      return code;
    } catch (const std::bad_alloc&) {
      if (!has_reached_limit) {
        scenario::share_progress(nullptr);
        throw;
      }
      complain_plainly(no_memory_text(*progress, limits));
    } catch (const scenario::OutOfTime& error) {
      complain_plainly(str(place_of(*progress), ": ", error.what()));
    } catch (...) {
      scenario::share_progress(nullptr);
      throw;
    }
    scenario::share_progress(nullptr);
    return 2;
  }
  const End end = watch(made.child, made.pipe, *progress, limits);
  ::close(made.pipe);
  const std::string wrong = complaint(end, *progress, limits);
  if (wrong.empty()) return WEXITSTATUS(end.status);
  complain_plainly(wrong);
  return 2;
}

void try_in_child(const std::function<void()>& work, const WatchLimits& limits) {
  const auto progress = map_progress();
  const Fork made = fork_watched(*progress, limits);
  if (made.child == 0) {
    int code = 0;
    try {
      work();
    } catch (const std::bad_alloc&) {
      if (has_reached_limit) code = no_memory_code;
    } catch (...) {
      // The caller repeats the work and meets the error itself.
    }
    ::_exit(code);
  }
  const End end = watch(made.child, made.pipe, *progress, limits);
  ::close(made.pipe);
  if (const std::string wrong = complaint(end, *progress, limits); !wrong.empty()) throw Error(wrong);
}

}  // namespace lockstep::cli
