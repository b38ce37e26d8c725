#include "harness/launch/series.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include <malloc.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/recorder.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/cuda/streams.hpp"
#include "harness/launch/worker.hpp"

// Of tcmalloc, with which the program is linked where the machine has it; null elsewhere. mallinfo2() does not see its
// heap.
extern "C" {
[[gnu::weak]] int MallocExtension_GetNumericProperty(const char* property, std::size_t* value);
}

namespace lockstep::launch {

namespace {

// The head of a case on the socket; the text of the request follows it in the same message.
struct CaseHead {
  int world_size = 0;
  int num_ranks_at_once = 0;
  double timeout_seconds = 0.0;
  double collective_deadline_seconds = 0.0;
  std::int64_t memory_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<CaseHead>);
constexpr std::size_t most_request_bytes = 16384;

// The descriptor that travels with a message.
union FileOfMessage {
  cmsghdr header;  // for its alignment
  char bytes[CMSG_SPACE(sizeof(int))];
};

// A case as the process receives it.
struct Request {
  LaunchOptions options;
  std::string text;
  int world_file = -1;
};

// The next case. Nothing: the launcher has closed its end. Throws ResourceError.
std::optional<Request> receive_case(int requests) {
  CaseHead head;
  std::string text(most_request_bytes, '\0');
  iovec parts[] = {{&head, sizeof head}, {text.data(), text.size()}};
  FileOfMessage file{};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = &file;
  message.msg_controllen = sizeof file;
  ssize_t received = 0;
  do received = ::recvmsg(requests, &message, MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  if (received < 0) throw resource_error("receiving a case", errno);
  if (received == 0) return {};
  Request request;
  const cmsghdr* const control = CMSG_FIRSTHDR(&message);
  // The system leaves the descriptor out if this process may have no further one.
  if (control == nullptr || (message.msg_flags & MSG_CTRUNC) != 0)
    throw resource_error("receiving the memory file of a case", EMFILE);
  std::memcpy(&request.world_file, CMSG_DATA(control), sizeof request.world_file);
  LOCKSTEP_CHECK(static_cast<std::size_t>(received) >= sizeof head, "a case of ", received, " bytes");
  text.resize(static_cast<std::size_t>(received) - sizeof head);
  request.text = std::move(text);
  request.options.world_size = head.world_size;
  request.options.launch = Launch::thread;
  request.options.timeout_seconds = head.timeout_seconds;
  request.options.collective_deadline_seconds = head.collective_deadline_seconds;
  request.options.memory_bytes = head.memory_bytes;
  request.options.num_ranks_at_once = head.num_ranks_at_once;
  return request;
}

std::size_t heap_in_use() {
  std::size_t bytes = 0;
  if (&MallocExtension_GetNumericProperty != nullptr &&
      MallocExtension_GetNumericProperty("generic.current_allocated_bytes", &bytes) != 0)
    return bytes;
  const struct mallinfo2 heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

// Runs a case. Returns whether every rank ended well. Throws if the case cannot start.
bool run_case(const Request& request, int pipe, const SeriesFunction& function_of) {
  struct File {
    int descriptor;
    ~File() { ::close(descriptor); }
  };
  std::unique_ptr<device::HostWorld> world;
  {
    const File file{request.world_file};
    const int size = request.options.world_size;
    world = device::HostWorld::map_file(file.descriptor, size, device::HostWorld::default_arena_bytes,
                                        comm::control_bytes(size));
  }
  const RankFunction function = function_of(request.text);
  std::vector<int> ranks(static_cast<std::size_t>(request.options.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return run_thread_ranks(ranks, request.options, *world, function, pipe);
}

[[noreturn]] void send_reason_and_end(int pipe, const std::exception& why) {
  try {
    send_frame(pipe, case_cannot_start, text_of(why));
  } catch (const std::exception&) {
    std::fprintf(stderr, "lockstep: a case cannot start: %s\n", why.what());
    ::_exit(3);
  }
  end_process();
}

}  // namespace

std::optional<Child> IdleProcesses::take() {
  if (children_.empty()) return {};
  Child child = std::move(children_.back());
  children_.pop_back();
  return child;
}

void IdleProcesses::put(Child child) { children_.push_back(std::move(child)); }

void IdleProcesses::end_all() noexcept {
  for (Child& child : children_) end_idle(child);
  children_.clear();
}

void IdleProcesses::close_inherited() {
  for (Child& child : children_) close_descriptors(child);
  children_.clear();
}

void end_idle(Child& child) noexcept {
  ::kill(-child.pid, SIGKILL);
  ::kill(child.pid, SIGKILL);
  while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  close_descriptors(child);
}

bool send_case(const Child& child, const LaunchOptions& options, const std::string& request, int world_file) {
  LOCKSTEP_CHECK(request.size() <= most_request_bytes, "a request of ", request.size(), " bytes");
  CaseHead head{options.world_size, options.num_ranks_at_once, options.timeout_seconds,
                options.collective_deadline_seconds, options.memory_bytes};
  iovec parts[] = {{&head, sizeof head}, {const_cast<char*>(request.data()), request.size()}};
  FileOfMessage file{};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = &file;
  message.msg_controllen = sizeof file;
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof world_file);
  std::memcpy(CMSG_DATA(control), &world_file, sizeof world_file);
  ssize_t sent = 0;
  do sent = ::sendmsg(child.requests, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0) return true;
  if (errno == EPIPE || errno == ECONNRESET) return false;
  throw resource_error("sending a case to its process", errno);
}

void run_series(int requests, int pipe, const SeriesFunction& function_of) {
  // Caches grow: those of kernels, plans and the library of scenarios. More than this is memory that a case has left.
  constexpr std::size_t most_growth = std::size_t{256} << 20;
  std::optional<std::size_t> heap_of_first;  // after its first case, which starts CUDA
  for (;;) {
    bool all_well = false;
    try {
      const std::optional<Request> request = receive_case(requests);
      if (!request) break;
      all_well = run_case(*request, pipe, function_of);
    } catch (const std::exception& error) {
      send_reason_and_end(pipe, error);
    }
    if (!all_well) break;
    flush_and_check_leaks();
    const std::size_t heap = heap_in_use();
    if (!heap_of_first) heap_of_first = heap;
    if (!device::cuda::why_no_further_ranks().empty() || heap > *heap_of_first + most_growth) break;
    ::malloc_trim(0);  // the limit of the next case counts from the memory that the process then has
    try {
      send_frame(pipe, case_is_over, "");
    } catch (const std::exception&) {
      break;  // all outcomes have arrived
    }
  }
  end_process();
}

}  // namespace lockstep::launch
