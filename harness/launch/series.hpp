// Processes that run the ranks of many cases, one case after the other, as threads. So CUDA, which starts slowly,
// starts once per process, and a short case on cpu costs no fork. Internal to harness/launch.
//
// Such a process is forked before its later cases exist. The launcher sends it each case over a socket: the numbers of
// its LaunchOptions, a text from which the process makes the rank function, and the file of its HostWorld, which the
// process maps. The outcomes come over the pipe, as from every rank, and then the frame `case_is_over`, if the process
// can run another case. It can if every rank ended well and has left nothing behind. Otherwise it ends, and the
// launcher sees its end as that of any rank.
//
//   std::optional<Child> child = idle.take();                      // else one that the launcher has forked
//   send_case(*child, options, request, world_file);               // false: it has ended in the meantime
//   ...                                                            // it has sent case_is_over
//   idle.put(std::move(*child));
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/launch/running_case.hpp"

namespace lockstep::launch {

// The process that was idle last is the next to run a case. It owns its processes, and ends them with itself.
class IdleProcesses {
 public:
  IdleProcesses() = default;
  ~IdleProcesses() { end_all(); }
  IdleProcesses(const IdleProcesses&) = delete;
  IdleProcesses& operator=(const IdleProcesses&) = delete;

  std::optional<Child> take();
  void put(Child child);
  void end_all() noexcept;  // kills them and waits for their end
  void close_inherited();   // in a child of the launcher: they are not its processes

 private:
  std::vector<Child> children_;
};

// Kills a process that runs no case, waits for its end and closes its descriptors.
void end_idle(Child& child) noexcept;

// Sends a case to a process that runs none. Returns false if the process has ended. Throws ResourceError.
bool send_case(const Child& child, const LaunchOptions& options, const std::string& request, int world_file);

// In the forked process: runs the cases that arrive at `requests`, until the launcher closes its end.
[[noreturn]] void run_series(int requests, int pipe, const SeriesFunction& function_of);

}  // namespace lockstep::launch
