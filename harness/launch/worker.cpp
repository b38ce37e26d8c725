#include "harness/launch/worker.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <thread>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "engine/comm/control.hpp"
#include "engine/comm/culprits.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/core/resources.hpp"
#include "engine/core/schedule.hpp"
#include "engine/core/start_thread.hpp"
#include "engine/device/fault.hpp"
#include "engine/device/place_on_host.hpp"
#include "engine/kernels/backend.hpp"
#include "harness/launch/cores.hpp"
#include "harness/launch/run_schedule.hpp"
#include "harness/verdict/serialize.hpp"

namespace lockstep::launch {

namespace {

// A broken pipe is no error: the launcher has ended, and this process is about to be killed too.
void write_all(int pipe, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(pipe, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) return;
    if (n < 0) throw resource_error("handing in the outcome of a rank", errno);
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

// Whether a rank has left the process as it found it, as far as its outcome tells. After an error, a group may be
// poisoned, a communicator aborted, and work abandoned.
bool ended_well(const verdict::RankOutcome& outcome) {
  return outcome.status == verdict::RankStatus::finished && outcome.failures.empty() && !outcome.end_expected &&
         outcome.evidence.errors_expected == 0;
}

// Sends the outcomes of the ranks of this process. Its threads share it.
struct Outlet {
  Outlet(int pipe_of_process, bool ranks_are_threads) : pipe(pipe_of_process), threads(ranks_are_threads) {}

  int pipe = -1;
  bool threads = false;
  std::mutex mutex;
  bool all_well = true;

  void send(int rank, const verdict::RankOutcome& outcome) {
    const std::string bytes = verdict::to_bytes(outcome);
    std::lock_guard lock(mutex);
    all_well = all_well && ended_well(outcome);
    send_frame(pipe, rank, bytes);
  }
};

// The outlet of a rank, as a service of its context.
struct OutletOfRank {
  explicit OutletOfRank(RankContext& of) : context(&of) {}
  RankContext* context;
  Outlet* outlet = nullptr;
};

verdict::RankOutcome run_function(int rank, const RankFunction& function) {
  try {
    kernels::initialize();
    comm::announce_begin();
    verdict::RankOutcome outcome = function(rank);
    outcome.rank = rank;
    return outcome;
  } catch (...) {
    return outcome_of_exception(rank);
  }
}

// The rank that runs on this thread, for the handler of a crash; -1: none.
thread_local int rank_of_thread = -1;
device::HostWorld* world_of_process = nullptr;
std::span<const int> only_rank_of_process;  // empty where ranks are threads

std::string_view why_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "ended by signal 11 (SIGSEGV)";
    case SIGBUS:
      return "ended by signal 7 (SIGBUS)";
    case SIGFPE:
      return "ended by signal 8 (SIGFPE)";
    case SIGILL:
      return "ended by signal 4 (SIGILL)";
    default:
      return "ended by signal 6 (SIGABRT)";
  }
}

void note_crash_and_end(int signal, siginfo_t* info, void*) {
  char why[512];
  const std::string_view end = why_of(signal);
  std::snprintf(why, sizeof why, "%.*s", static_cast<int>(end.size()), end.data());
  char fault[400] = "";
  if (signal == SIGSEGV) device::describe_fault(info->si_addr, fault, sizeof fault);
  if (fault[0] != '\0') {
    std::snprintf(why, sizeof why, "%s; %.*s", fault, static_cast<int>(end.size()), end.data());
    std::strncat(fault, "\n", sizeof fault - std::strlen(fault) - 1);
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, fault, std::strlen(fault));
  }
  if (rank_of_thread >= 0) comm::mark_crashed(*world_of_process, rank_of_thread, why);
  ::raise(signal);  // SA_RESETHAND has restored the default handler
}

// The handler records why a rank crashed, and of thread ranks, which die together, the one that crashed first. The
// sanitizers report crashes themselves.
void mark_crashes(device::HostWorld& world) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  world_of_process = &world;
  struct sigaction action = {};
  action.sa_sigaction = note_crash_and_end;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER | SA_ONSTACK | SA_SIGINFO;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(signal, &action, nullptr);
#else
  world_of_process = &world;
#endif
}

// Gives the handler its own stack, because a rank that has overflowed its stack has none left. The registers alone take
// up to 11 KiB of it.
void use_spare_stack() {
  alignas(16) thread_local char spare[65536];
  stack_t stack{};
  stack.ss_sp = spare;
  stack.ss_size = sizeof spare;
  ::sigaltstack(&stack, nullptr);
}

// Sets the kernel's limit on the heap, for memory that no budget counts. An allocation beyond it throws std::bad_alloc
// at its step, long before the machine runs out of memory and kills some process. Device memory is shared and not
// counted.
void limit_process_memory([[maybe_unused]] std::int64_t rank_bytes, [[maybe_unused]] std::size_t num_ranks) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  rlimit limit = {};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0) return;
  static const rlim_t of_launcher = limit.rlim_cur;  // a process of a series sets the limit once per case
  const auto set = [&](rlim_t wanted) {
    limit.rlim_cur = std::min(of_launcher, wanted);
    ::setrlimit(RLIMIT_DATA, &limit);
  };
  if (rank_bytes <= 0) return set(of_launcher);
  std::int64_t total = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return;
  const int found = std::fscanf(file, "%ld %ld %ld %ld %ld %ld", &total, &resident, &shared, &text, &library, &data);
  std::fclose(file);
  if (found != 6) return;
  // Room for the stacks of threads and the memory that libraries keep.
  constexpr std::int64_t spare = std::int64_t{1} << 30, spare_of_rank = std::int64_t{256} << 20;
  set(static_cast<rlim_t>(data * ::sysconf(_SC_PAGESIZE) + spare +
                          bounded_product(static_cast<std::int64_t>(num_ranks), rank_bytes + spare_of_rank)));
#endif
}

void run_rank(int rank, const LaunchOptions& options, device::HostWorld& world, const RankFunction& function,
              Outlet& outlet) {
  RankContext context(rank, options.world_size, &world);
  RankScope scope(context);
  context.service<OutletOfRank>().outlet = &outlet;
  auto& place = context.service<device::PlaceOnHost>();
  place.ranks_are_threads = options.launch == Launch::thread;
  place.num_ranks_at_once = options.num_ranks_at_once;
  comm::set_deadline(options.collective_deadline_seconds);
  verdict::RankOutcome outcome = run_function(rank, function);
  const bool failed = outcome.status != verdict::RankStatus::finished && !outcome.end_expected;
  std::string why = outcome.failures.empty() ? outcome.detail : outcome.failures.front().message;
  comm::announce_end(failed, failed ? why : "");
  if (outcome.end_time_ns == 0) outcome.end_time_ns = comm::now_ns();
  outlet.send(rank, outcome);
}

void send_never_started(int rank, const ResourceError& why, device::HostWorld& world, Outlet& outlet) {
  verdict::RankOutcome outcome;
  outcome.rank = rank;
  outcome.status = verdict::RankStatus::never_started;
  outcome.detail = why.what();
  outcome.end_time_ns = comm::now_ns();
  comm::announce_death(world, rank, str("it could not be started: ", outcome.detail));
  outlet.send(rank, outcome);
}

}  // namespace

verdict::RankOutcome outcome_of_exception(int rank) {
  verdict::RankOutcome outcome;
  outcome.rank = rank;
  outcome.status = verdict::RankStatus::failed;
  verdict::Failure failure;
  failure.check = "rank";
  failure.time_ns = comm::now_ns();
  if (const RankContext* context = RankContext::current_or_null()) {
    failure.line = context->scenario_line;
    failure.iteration = context->iteration;
  }
  try {
    throw;
  } catch (const UnsupportedError& error) {
    outcome.status = verdict::RankStatus::unsupported;
    outcome.detail = error.what();
    return outcome;
  } catch (const ResourceError& error) {
    outcome.status = verdict::RankStatus::never_started;
    outcome.detail = error.what();
    return outcome;
  } catch (const comm::PeerEndedError& error) {
    failure.message = error.what();
    failure.secondary = true;
  } catch (const std::exception& error) {
    failure.message = text_of(error);
  } catch (...) {
    failure.message = "an exception that is no std::exception was thrown";
  }
  outcome.failures.push_back(std::move(failure));
  return outcome;
}

void become_child(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::setpgid(0, 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD, SIGSEGV, SIGABRT})
    ::signal(signal, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) {
    ::dup2(null, STDIN_FILENO);
    ::close(null);
  }
}

namespace {

// Ends this process because of an error that its ranks cannot report. Peers and the launcher read the reason from the
// control region.
[[noreturn]] void end_without_outcome(std::span<const int> ranks, device::HostWorld& world,
                                      const std::exception& error) noexcept {
  const char* text = error.what();
  std::string longer;
  try {
    longer = text_of(error);
    text = longer.c_str();
  } catch (const std::bad_alloc&) {  // the short text will do
  }
  std::fprintf(stderr, "lockstep: a rank ends: %s\n", text);
  for (const int rank : ranks) comm::mark_crashed(world, rank, text);
  std::fflush(nullptr);
  ::_exit(3);
}

// Of an error that cannot be thrown, in a destructor for example. Only refused memory can be named.
[[noreturn]] void end_by_terminate() {
  try {
    const std::exception_ptr thrown = std::current_exception();
    if (world_of_process == nullptr) std::abort();  // between two cases
    if (!thrown) throw std::bad_alloc();            // in a library, most likely
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc& error) {
    end_without_outcome(rank_of_thread >= 0 ? std::span<const int>(&rank_of_thread, 1) : only_rank_of_process,
                        *world_of_process, error);
  } catch (...) {  // a crash like any other
  }
  std::abort();
}

// Starts the thread of a rank, or reports that it cannot start.
void start_thread(std::vector<std::thread>& threads, int rank, RankActors& actors, const LaunchOptions& options,
                  device::HostWorld& world, const RankFunction& function, Outlet& outlet) {
  try {
    threads.push_back(lockstep::start_thread("starting its thread", [&, rank] {
      const RankActors::Turn turn(actors, rank);
      char name[16];
      std::snprintf(name, sizeof name, "rank %d", rank);
      ::pthread_setname_np(::pthread_self(), name);
      rank_of_thread = rank;
      use_spare_stack();
      try {
        run_rank(rank, options, world, function, outlet);
      } catch (const std::exception& error) {
        end_without_outcome({&rank, 1}, world, error);
      }
    }));
  } catch (const ResourceError& error) {
    actors.retire(rank);
    send_never_started(rank, error, world, outlet);
  }
}

// Runs the ranks, and returns whether all ended well. An error leaves it only if a rank could not hand in its outcome.
bool run_all(const std::vector<int>& ranks, const LaunchOptions& options, device::HostWorld& world,
             const RankFunction& function, int pipe) {
  limit_process_memory(options.memory_bytes, ranks.size());
  Outlet outlet(pipe, options.launch == Launch::thread);
  mark_crashes(world);
  std::set_terminate(end_by_terminate);
  if (!outlet.threads) {
    only_rank_of_process = ranks;
    use_spare_stack();
    for (int rank : ranks) {
      rank_of_thread = rank;
      run_rank(rank, options, world, function, outlet);
    }
  } else {
    if (options.schedule != nullptr) use_one_core(options.schedule->core);
    RankActors actors(ranks, options.schedule.get());
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    for (int rank : ranks) {
      try {
        start_thread(threads, rank, actors, options, world, function, outlet);
      } catch (const std::exception& error) {  // the threads that run already cannot be unwound
        end_without_outcome({&rank, 1}, world, error);
      }
    }
    actors.start();
    for (std::thread& thread : threads) thread.join();
  }
  return outlet.all_well;
}

}  // namespace

void send_frame(int pipe, std::int32_t rank, const std::string& bytes) {
  FrameHead head;
  head.rank = rank;
  head.bytes = bytes.size();
  write_all(pipe, reinterpret_cast<const char*>(&head), sizeof head);
  write_all(pipe, bytes.data(), bytes.size());
}

void flush_and_check_leaks() {
  std::fflush(nullptr);
#if defined(__SANITIZE_ADDRESS__)
  // The leak check runs at exit(), which this process does not call.
  if (__lsan_do_recoverable_leak_check() != 0) ::_exit(23);
#endif
}

void end_process() {
  flush_and_check_leaks();
  // Skip the destructors of statics: this process is a copy of the launcher, which they belong to.
  ::_exit(0);
}

bool run_thread_ranks(const std::vector<int>& ranks, const LaunchOptions& options, device::HostWorld& world,
                      const RankFunction& function, int pipe) {
  try {
    const bool all_well = run_all(ranks, options, world, function, pipe);
    world_of_process = nullptr;
    return all_well;
  } catch (const std::exception& error) {
    end_without_outcome(ranks, world, error);
  }
}

void run_ranks(const std::vector<int>& ranks, const LaunchOptions& options, device::HostWorld& world,
               const RankFunction& function, int pipe) {
  // This process is a copy of the launcher: an error must not reach the launcher's handlers and destructors here.
  try {
    run_all(ranks, options, world, function, pipe);
  } catch (const std::exception& error) {
    end_without_outcome(ranks, world, error);
  }
  end_process();
}

void exit_rank_by_kill() { exit_rank_by_kill(verdict::RankOutcome{}); }

void exit_rank_by_kill(verdict::RankOutcome so_far) {
  RankContext& context = RankContext::current();
  Outlet* outlet = context.service<OutletOfRank>().outlet;
  if (outlet == nullptr || outlet->threads)
    throw Error(str("rank ", context.rank(), " cannot be killed alone, because it is a thread"),
                "launch the ranks as processes");
  so_far.rank = context.rank();
  so_far.status = verdict::RankStatus::killed;
  so_far.signal = SIGKILL;
  so_far.end_expected = true;
  outlet->send(context.rank(), so_far);
  std::fflush(nullptr);
  end_rank_by_signal();
}

void end_rank_by_signal() {
  for (;;) ::kill(::getpid(), SIGKILL);
}

void end_rank_by_code(int code) { ::_exit(code); }

}  // namespace lockstep::launch
