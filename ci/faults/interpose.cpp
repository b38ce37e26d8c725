// A library for LD_PRELOAD that makes one chosen call of the program fail, as a full disk or an exhausted machine
// would.
//
// A *point* is one call: the process (role), the name of the call, the place of the caller, and how often that place
// has called so far. Without FAULTS_AT the library appends every point to the file FAULTS_LOG. With FAULTS_AT it makes
// that point fail with the errno FAULTS_ERRNO, and appends the point when it is reached.
//
//   FAULTS_ROLE      name of the first process. The third child that it forks is ROLE.3.
//   FAULTS_SHORT=1   a write first succeeds with half of its bytes; the next one to the same file fails.
//   FAULTS_EVERY_NEW=1  every allocation with `new` counts
//
// Calls of the program itself, libstdc++ and yaml-cpp count, from the beginning of main() on. Other libraries are left
// out, and so are calls that the C library makes on its own behalf: fopen() counts, the open() within it does not.
// Without FAULTS_EVERY_NEW, the first allocation with `new` of each place counts.

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

constexpr std::size_t max_text = 400;

struct Module {
  std::uintptr_t begin = 0, end = 0;
};
struct Place {
  std::atomic<std::uint64_t> key{0};
  std::atomic<int> count{0};
};

bool active = false;
char role[64];
int num_forks = 0;
const char* log_path = nullptr;
const char* wanted = nullptr;
int reason = 0;
bool is_short = false;
bool every_new = false;
int short_file = -1;  // its next write fails
Module modules[3];    // program, libstdc++, yaml-cpp
Place places[1 << 15];

int note_module(dl_phdr_info* info, std::size_t, void*) {
  const bool is_program = info->dlpi_name[0] == '\0' && modules[0].end == 0;
  const int index = is_program                                     ? 0
                    : std::strstr(info->dlpi_name, "/libstdc++")   ? 1
                    : std::strstr(info->dlpi_name, "/libyaml-cpp") ? 2
                                                                   : -1;
  if (index < 0) return 0;
  Module& found = modules[index];
  found.begin = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
      const std::uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
      if (end > found.end) found.end = end;
    }
  return 0;
}

// Identifies the place of the caller: the number of its module and its offset there. 0: not counted.
std::uint64_t place_of(const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  for (std::uint64_t i = 0; i < 3; ++i)
    if (address >= modules[i].begin && address < modules[i].end) return (i + 1) << 48 | (address - modules[i].begin);
  return 0;
}

// How often this place has made this call so far, this one included.
int count_at(std::uint64_t place, const char* call) {
  std::uint64_t key = place;
  for (const char* c = call; *c != '\0'; ++c) key = key * 1099511628211ULL + static_cast<unsigned char>(*c);
  key |= 1;
  constexpr std::size_t mask = sizeof places / sizeof places[0] - 1;
  for (std::size_t i = (key >> 20) & mask;; i = (i + 1) & mask) {
    std::uint64_t empty = 0;
    if (places[i].key.load() != key && !places[i].key.compare_exchange_strong(empty, key) && empty != key) continue;
    return ++places[i].count;
  }
}

void append(const char* text, std::size_t size) {
  const auto file = ::syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return;
  ::syscall(SYS_write, file, text, size);
  ::syscall(SYS_close, file);
}

// Counts the call. Returns whether it must fail. `target` names the file or object for people.
bool must_fail(const char* call, const void* caller, const char* target, bool first_only = false) {
  if (!active) return false;
  const std::uint64_t place = place_of(caller);
  if (place == 0) return false;
  const int count = count_at(place, call);
  if (first_only && count > 1) return false;
  const int saved = errno;
  char text[max_text];
  int size =
      std::snprintf(text, sizeof text, "%s|%s|%llx|%d", role, call, static_cast<unsigned long long>(place), count);
  const bool is_wanted = wanted != nullptr && std::strcmp(text, wanted) == 0;
  if (is_wanted || wanted == nullptr) {
    size += std::snprintf(text + size, sizeof text - static_cast<std::size_t>(size), "|%.250s\n", target ? target : "");
    append(text, static_cast<std::size_t>(size));
  }
  errno = is_wanted ? reason : saved;
  return is_wanted;
}

// The path behind a descriptor, read without a call that counts.
struct PathOf {
  char text[256];
  explicit PathOf(int file) {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const auto size = active ? ::syscall(SYS_readlinkat, AT_FDCWD, link, text, sizeof text - 1) : -1;
    text[size > 0 ? size : 0] = '\0';
  }
};

template <class Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

void begin() {
  log_path = std::getenv("FAULTS_LOG");
  const char* name = std::getenv("FAULTS_ROLE");
  if (log_path == nullptr || name == nullptr) return;
  char program[256] = "";
  const auto size = ::syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", program, sizeof program - 1);
  if (size < 9 || std::strcmp(program + size - 9, "/lockstep") != 0) return;
  std::snprintf(role, sizeof role, "%s", name);
  wanted = std::getenv("FAULTS_AT");
  const char* number = std::getenv("FAULTS_ERRNO");
  reason = number != nullptr ? std::atoi(number) : EIO;
  is_short = std::getenv("FAULTS_SHORT") != nullptr;
  every_new = std::getenv("FAULTS_EVERY_NEW") != nullptr;
  ::dl_iterate_phdr(note_module, nullptr);
  active = true;
}

void become_child(int number) {
  const std::size_t size = std::strlen(role);
  std::snprintf(role + size, sizeof role - size, ".%d", number);
  num_forks = 0;
  short_file = -1;
  for (Place& place : places) {
    place.key = 0;
    place.count = 0;
  }
}

using Main = int (*)(int, char**, char**);
Main real_main = nullptr;

int main_with_faults(int argc, char** argv, char** environment) {
  begin();
  return real_main(argc, argv, environment);
}

// A write fails at once, or after half of its bytes.
enum class Write { whole, half, none };
Write fate_of_write(const char* call, const void* caller, int file) {
  if (!active) return Write::whole;
  if (short_file == file) {
    short_file = -1;
    errno = reason;
    return Write::none;
  }
  if (!must_fail(call, caller, PathOf(file).text)) return Write::whole;
  if (!is_short) return Write::none;
  short_file = file;
  return Write::half;
}

}  // namespace

#define CALLER __builtin_return_address(0)
#define NEXT(name) static const auto real = next(&::name, #name)
// A call that returns -1 or `failed` with errno.
#define FAULT(result, name, target, failed, parameters, arguments) \
  result name parameters {                                         \
    NEXT(name);                                                    \
    if (must_fail(#name, CALLER, target)) return failed;           \
    return real arguments;                                         \
  }

extern "C" {

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld)(), void* stack) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  real_main = main;
  return reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"))(main_with_faults, argc, argv, init, fini,
                                                                          rtld, stack);
}

pid_t fork() {
  NEXT(fork);
  if (must_fail("fork", CALLER, "")) return -1;
  const int number = ++num_forks;
  const pid_t child = real();
  if (child == 0 && active) become_child(number);
  return child;
}

// ---- files ----
int open(const char* path, int flags, ...) {
  NEXT(open);
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, int));
  va_end(rest);
  if (must_fail((flags & O_CREAT) != 0 ? "create" : "open", CALLER, path)) return -1;
  return real(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  NEXT(open64);
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, int));
  va_end(rest);
  if (must_fail((flags & O_CREAT) != 0 ? "create" : "open", CALLER, path)) return -1;
  return real(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  NEXT(openat);
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, int));
  va_end(rest);
  if (must_fail("openat", CALLER, path)) return -1;
  return real(folder, path, flags, mode);
}
FAULT(FILE*, fopen, path, nullptr, (const char* path, const char* mode), (path, mode))
FAULT(FILE*, fopen64, path, nullptr, (const char* path, const char* mode), (path, mode))
ssize_t read(int file, void* to, size_t size) {
  NEXT(read);
  if (active && must_fail("read", CALLER, PathOf(file).text)) return -1;
  return real(file, to, size);
}
ssize_t pread(int file, void* to, size_t size, off_t at) {
  NEXT(pread);
  if (active && must_fail("pread", CALLER, PathOf(file).text)) return -1;
  return real(file, to, size, at);
}
ssize_t write(int file, const void* from, size_t size) {
  NEXT(write);
  const Write fate = fate_of_write("write", CALLER, file);
  if (fate == Write::none) return -1;
  return real(file, from, fate == Write::half ? (size + 1) / 2 : size);
}
ssize_t writev(int file, const iovec* parts, int count) {
  NEXT(writev);
  const Write fate = fate_of_write("writev", CALLER, file);
  if (fate == Write::none) return -1;
  return real(file, parts, fate == Write::half ? 1 : count);
}
int close(int file) {
  NEXT(close);
  const bool fails = active && must_fail("close", CALLER, PathOf(file).text);
  const int result = real(file);
  if (!fails) return result;
  errno = reason;
  return -1;
}
int fclose(FILE* file) {
  NEXT(fclose);
  const bool fails = active && must_fail("fclose", CALLER, PathOf(::fileno(file)).text);
  const int result = real(file);
  if (!fails) return result;
  errno = reason;
  return EOF;
}
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  NEXT(fwrite);
  if (file == stdout && must_fail("fwrite", CALLER, "standard output")) {
    file->_flags |= 0x20;  // what ferror() reads
    return 0;
  }
  return real(from, size, count, file);
}
int fflush(FILE* file) {
  NEXT(fflush);
  if (file == stdout && must_fail("fflush", CALLER, "standard output")) {
    file->_flags |= 0x20;
    return EOF;
  }
  return real(file);
}
FAULT(ssize_t, sendfile, PathOf(to).text, -1, (int to, int from, off_t* at, size_t size), (to, from, at, size))
FAULT(ssize_t, copy_file_range, PathOf(to).text, -1,
      (int from, off64_t* from_at, int to, off64_t* to_at, size_t size, unsigned flags),
      (from, from_at, to, to_at, size, flags))
FAULT(int, fsync, PathOf(file).text, -1, (int file), (file))
FAULT(int, ftruncate, PathOf(file).text, -1, (int file, off_t size), (file, size))
FAULT(int, ftruncate64, PathOf(file).text, -1, (int file, off64_t size), (file, size))
FAULT(int, flock, PathOf(file).text, -1, (int file, int operation), (file, operation))
FAULT(int, rename, to, -1, (const char* from, const char* to), (from, to))
FAULT(int, renameat2, to, -1, (int a, const char* from, int b, const char* to, unsigned flags), (a, from, b, to, flags))
FAULT(int, mkdir, path, -1, (const char* path, mode_t mode), (path, mode))
FAULT(char*, mkdtemp, path, nullptr, (char* path), (path))
FAULT(DIR*, opendir, path, nullptr, (const char* path), (path))
FAULT(DIR*, fdopendir, PathOf(file).text, nullptr, (int file), (file))
FAULT(int, stat, path, -1, (const char* path, struct stat* about), (path, about))
FAULT(int, lstat, path, -1, (const char* path, struct stat* about), (path, about))
FAULT(int, fstat, PathOf(file).text, -1, (int file, struct stat* about), (file, about))
FAULT(char*, realpath, path, nullptr, (const char* path, char* resolved), (path, resolved))
FAULT(ssize_t, readlink, path, -1, (const char* path, char* to, size_t size), (path, to, size))
FAULT(int, dup2, PathOf(from).text, -1, (int from, int to), (from, to))

// ---- memory ----
void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  NEXT(mmap);
  if (active && must_fail("mmap", CALLER, file < 0 ? "anonymous" : PathOf(file).text)) return MAP_FAILED;
  return real(at, size, protection, flags, file, offset);
}
FAULT(int, memfd_create, name, -1, (const char* name, unsigned flags), (name, flags))

// ---- descriptors, threads, sockets ----
FAULT(int, pipe2, "", -1, (int* ends, int flags), (ends, flags))
FAULT(int, eventfd, "", -1, (unsigned start, int flags), (start, flags))
FAULT(int, epoll_create1, "", -1, (int flags), (flags))
FAULT(int, epoll_ctl, "", -1, (int events, int operation, int file, epoll_event* event),
      (events, operation, file, event))
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  NEXT(pthread_create);
  if (must_fail("pthread_create", CALLER, "")) return reason;
  return real(thread, attributes, run, argument);
}
FAULT(int, socket, "", -1, (int domain, int type, int protocol), (domain, type, protocol))
FAULT(int, connect, "", -1, (int file, const sockaddr* to, socklen_t size), (file, to, size))
FAULT(int, bind, "", -1, (int file, const sockaddr* to, socklen_t size), (file, to, size))
FAULT(int, listen, "", -1, (int file, int backlog), (file, backlog))
FAULT(int, accept4, "", -1, (int file, sockaddr* from, socklen_t* size, int flags), (file, from, size, flags))
FAULT(int, setsockopt, "", -1, (int file, int level, int name, const void* value, socklen_t size),
      (file, level, name, value, size))
FAULT(int, socketpair, "", -1, (int domain, int type, int protocol, int* ends), (domain, type, protocol, ends))
FAULT(ssize_t, recvmsg, "", -1, (int file, msghdr* message, int flags), (file, message, flags))
FAULT(ssize_t, sendmsg, "", -1, (int file, const msghdr* message, int flags), (file, message, flags))
FAULT(ssize_t, send, "", -1, (int file, const void* from, size_t size, int flags), (file, from, size, flags))
FAULT(ssize_t, recv, "", -1, (int file, void* to, size_t size, int flags), (file, to, size, flags))

}  // extern "C"

// ---- new ----
namespace {
void* allocate(std::size_t size, std::size_t alignment, const void* caller) {
  if (must_fail("new", caller, "", !every_new)) return nullptr;
  if (size == 0) size = 1;
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(size)
             : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void* allocated(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t size) { return allocated(allocate(size, 1, CALLER)); }
void* operator new[](std::size_t size) { return allocated(allocate(size, 1, CALLER)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocated(allocate(size, static_cast<std::size_t>(alignment), CALLER));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1, CALLER); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
