#include "harness/launch/processes.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include <poll.h>
#include <unistd.h>

#include "engine/comm/mpi_run.hpp"
#include "engine/comm/socket_link.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/launcher_link.hpp"
#include "harness/launch/rendezvous.hpp"

namespace lockstep::launch {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int wait_ms = 20;
constexpr double end_seconds = 5.0;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class MpiProcesses : public Processes {
 public:
  explicit MpiProcesses(comm::MpiRun run) : run_(std::move(run)) {}
  int rank() const override { return run_.rank; }
  const std::vector<int>& host_of() const override { return run_.host_of; }
  comm::Link* link() override { return run_.link.get(); }
  int wait_for_launcher() override { return comm::wait_for_launcher(); }
  void end(int exit_code) override { comm::end_mpi(exit_code); }

 private:
  comm::MpiRun run_;
};

// All processes have a link; the launchers use a part of it.
class LinkedProcesses : public Processes {
 public:
  LinkedProcesses(std::unique_ptr<comm::Link> all, const ProcessOptions& options);
  int rank() const override { return all_->host(); }
  const std::vector<int>& host_of() const override { return host_of_; }
  comm::Link* link() override { return launchers_.get(); }
  int wait_for_launcher() override;
  void end(int exit_code) override;

 private:
  std::vector<std::string> exchange_systems(const ProcessOptions& options);
  std::string await(int process, const ProcessOptions& options, const char* what);
  void wait(int milliseconds) const;

  std::unique_ptr<comm::Link> all_;
  std::vector<int> host_of_, first_of_;  // per process, per host
  std::unique_ptr<comm::Link> launchers_;
  std::vector<comm::Message> early_;  // of other processes than the one that was awaited
};

LinkedProcesses::LinkedProcesses(std::unique_ptr<comm::Link> all, const ProcessOptions& options)
    : all_(std::move(all)) {
  const std::vector<std::string> systems = exchange_systems(options);
  for (std::size_t process = 0; process < systems.size(); ++process) {
    const auto same = std::find_if(first_of_.begin(), first_of_.end(), [&](int first) {
      return systems[static_cast<std::size_t>(first)] == systems[process];
    });
    host_of_.push_back(static_cast<int>(same - first_of_.begin()));
    if (same == first_of_.end()) first_of_.push_back(static_cast<int>(process));
  }
  if (std::find(first_of_.begin(), first_of_.end(), rank()) != first_of_.end())
    launchers_ = link_between(*all_, first_of_);
}

// Every process sends its system to process 0, which sends all of them to everyone, one per line.
std::vector<std::string> LinkedProcesses::exchange_systems(const ProcessOptions& options) {
  std::string own = str(system_name(), " ", machine_name());
  if (options.ranks_per_host > 0) own += str(" ", rank() / options.ranks_per_host);
  own += "\n";
  std::string table = own;
  if (rank() == 0) {
    for (int each = 1; each < all_->num_hosts(); ++each) table += await(each, options, "did not say where it runs");
    for (int each = 1; each < all_->num_hosts(); ++each) all_->send(each, comm::Channel::launcher, table);
  } else {
    all_->send(0, comm::Channel::launcher, own);
    table = await(0, options, "did not say where the others run");
  }
  std::vector<std::string> systems;
  for (std::size_t at = 0, end = 0; (end = table.find('\n', at)) != std::string::npos; at = end + 1)
    systems.push_back(table.substr(at, end - at));
  LOCKSTEP_CHECK(systems.size() == static_cast<std::size_t>(all_->num_hosts()), systems.size(), " systems of ",
                 all_->num_hosts(), " processes");
  return systems;
}

// The next message, which must be of this process. Messages of others wait.
std::string LinkedProcesses::await(int process, const ProcessOptions& options, const char* what) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const bool alive = all_->is_alive(process);
    for (comm::Message message; all_->poll(comm::Channel::launcher, message);) early_.push_back(std::move(message));
    const auto found =
        std::find_if(early_.begin(), early_.end(), [&](const comm::Message& each) { return each.from == process; });
    if (found != early_.end()) {
      std::string text = std::move(found->bytes);
      early_.erase(found);
      return text;
    }
    const bool stopped = options.stop && options.stop();
    if (!alive || stopped || seconds_since(begin) > options.seconds)
      throw Error(str("hosts: the process of rank ", process, " of ", all_->num_hosts(), " ", what,
                      !alive    ? std::string(": it has ended")
                      : stopped ? std::string(": the wait was interrupted")
                                : str(" within ", options.seconds, " s")),
                  "see its message; start the processes again");
    wait(wait_ms);
  }
}

void LinkedProcesses::wait(int milliseconds) const {
  pollfd waited{all_->descriptor(), POLLIN, 0};
  ::poll(&waited, waited.fd >= 0 ? 1 : 0, milliseconds);
}

int LinkedProcesses::wait_for_launcher() {
  const int launcher = first_of_[static_cast<std::size_t>(host_of_[static_cast<std::size_t>(rank())])];
  for (;;) {
    const bool alive = all_->is_alive(launcher);
    for (comm::Message message; all_->poll(comm::Channel::launcher, message);)
      if (message.from == launcher) return std::atoi(message.bytes.c_str());
    if (!alive) return 3;
    wait(all_->descriptor() >= 0 ? 1000 : wait_ms);
  }
}

void LinkedProcesses::end(int exit_code) {
  for (int process = 0; process < all_->num_hosts(); ++process)
    if (process != rank() && host_of_[static_cast<std::size_t>(process)] == host_of_[static_cast<std::size_t>(rank())])
      all_->send(process, comm::Channel::launcher, str(exit_code));
  const Clock::time_point begin = Clock::now();
  while (!all_->has_sent_all() && seconds_since(begin) < end_seconds) wait(1);
}

}  // namespace

std::unique_ptr<Processes> processes_over(std::unique_ptr<comm::Link> link, const ProcessOptions& options) {
  return std::make_unique<LinkedProcesses>(std::move(link), options);
}

std::unique_ptr<Processes> open_processes(const LaunchEnvironment& environment, const std::string& wish,
                                          const ProcessOptions& options) {
  const std::string mpi_missing = comm::mpi_is_built_in() ? "" : comm::mpi_facts();
  switch (choose_link(environment, wish, mpi_missing).kind) {
    case LinkKind::none:
      return nullptr;
    case LinkKind::mpi: {
      if (options.ranks_per_host > 1)
        throw Error(str("LOCKSTEP_HOSTS=", options.ranks_per_host, " with MPI"), "give `ranks`, or --link tcp");
      comm::MpiRun run = comm::start_mpi(options.ranks_per_host == 1);
      if (run.rank != *environment.rank || run.world_size != *environment.world_size)
        throw Error(str("link: MPI says rank ", run.rank, " of ", run.world_size, ", and the variables of ",
                        environment.launcher, " say rank ", *environment.rank, " of ", *environment.world_size),
                    "start the processes by the mpirun of the MPI that lockstep was built with (lockstep doctor), or "
                    "give --link tcp");
      return std::make_unique<MpiProcesses>(std::move(run));
    }
    case LinkKind::tcp:
      break;
  }
  const Rendezvous rendezvous{environment.address,     environment.port, *environment.rank,
                              *environment.world_size, options.seconds,  options.stop};
  return processes_over(std::make_unique<comm::SocketLink>(*environment.rank, connect_all(rendezvous)), options);
}

ProcessOptions process_options() {
  ProcessOptions options;
  if (const char* hosts = std::getenv("LOCKSTEP_HOSTS"); hosts != nullptr && *hosts != '\0') {
    char* end = nullptr;
    const long number = std::string(hosts) == "ranks" ? 1 : std::strtol(hosts, &end, 10);
    if ((end != nullptr && *end != '\0') || number < 1 || number > 1024)
      throw Error(str("LOCKSTEP_HOSTS=", hosts),
                  "give `ranks`, which makes every process a host of its own, or a number of processes per host");
    options.ranks_per_host = static_cast<int>(number);
  }
  if (const char* seconds = std::getenv("LOCKSTEP_CONNECT_SECONDS"); seconds != nullptr && *seconds != '\0') {
    char* end = nullptr;
    options.seconds = std::strtod(seconds, &end);
    if (*end != '\0' || !(options.seconds > 0.0 && options.seconds <= 86400.0))
      throw Error(str("LOCKSTEP_CONNECT_SECONDS=", seconds, " is no time"), "give seconds, such as 60");
  }
  return options;
}

std::string system_name() {
  std::ifstream stream("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(stream, boot);
  char network[128] = "";
  [[maybe_unused]] const ssize_t size = ::readlink("/proc/self/ns/net", network, sizeof network - 1);
  return str(boot, " ", network);
}

std::string machine_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep::launch
