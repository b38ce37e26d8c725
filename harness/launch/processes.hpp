// The processes that mpirun, srun or torchrun has started for one run, one per rank, and the link between the launchers
// of their machines. The first process of a machine is its launcher; the others keep their places until the run ends.
//
//   std::unique_ptr<Processes> processes = open_processes(recognize_environment(), "", options);
//   if (processes == nullptr) ...                                     // this process runs alone
//   if (processes->link() == nullptr) return processes->wait_for_launcher();
//   ...
//   processes->end(exit_code);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/link.hpp"
#include "harness/launch/environment.hpp"

namespace lockstep::launch {

class Processes {
 public:
  Processes() = default;
  virtual ~Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  virtual int rank() const = 0;
  // The machine of each rank, numbered by their first ranks.
  virtual const std::vector<int>& host_of() const = 0;
  // Between launchers; null in other processes. Its hosts are the machines.
  virtual comm::Link* link() = 0;
  // In a process that is no launcher: sleeps until its launcher ends the run, and returns the exit code: 3 when the
  // launcher is gone.
  virtual int wait_for_launcher() = 0;
  // In a launcher, on every machine with the same code: ends the processes that wait for it, and the link.
  virtual void end(int exit_code) = 0;
};

struct ProcessOptions {
  // So many processes count as a machine of their own, for tests and measurements on one machine. 0: as they are.
  int ranks_per_host = 0;
  double seconds = 60.0;         // for the processes to find each other
  std::function<bool()> stop{};  // asked while they do
};

// The link that choose_link() names. Null when this process runs alone. Throws Error when the processes do not find
// each other.
std::unique_ptr<Processes> open_processes(const LaunchEnvironment& environment, const std::string& wish,
                                          const ProcessOptions& options);
// The options of the environment: LOCKSTEP_HOSTS, `ranks` or a number of ranks per host, and LOCKSTEP_CONNECT_SECONDS.
// Throws Error for other values.
ProcessOptions process_options();

// Over a link between all processes, such as TCP sockets. Throws Error when a process does not answer.
std::unique_ptr<Processes> processes_over(std::unique_ptr<comm::Link> link, const ProcessOptions& options);

// Names the running system of this process. Processes of the same system share clock and memory. A network of its own
// makes a container a system of its own.
std::string system_name();
std::string machine_name();

}  // namespace lockstep::launch
