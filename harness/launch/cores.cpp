#include "harness/launch/cores.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/text.hpp"

namespace lockstep::launch {

namespace {

// This process and the other children of its parent that run the same program.
std::vector<pid_t> processes_of_run() {
  std::vector<pid_t> found;
  struct stat own {};
  if (::stat("/proc/self/exe", &own) != 0) return found;
  const pid_t parent = ::getppid();
  std::ifstream children(str("/proc/", parent, "/task/", parent, "/children"));
  for (pid_t child = 0; children >> child;) {
    struct stat other {};
    if (::stat(str("/proc/", child, "/exe").c_str(), &other) == 0 && other.st_dev == own.st_dev &&
        other.st_ino == own.st_ino)
      found.push_back(child);
  }
  return found;
}

}  // namespace

int use_cores_of_processes(int num_processes) {
  const std::vector<pid_t> processes = processes_of_run();
  cpu_set_t all;
  CPU_ZERO(&all);
  if (static_cast<int>(processes.size()) >= num_processes) {
    for (const pid_t process : processes) {
      cpu_set_t cores;
      if (::sched_getaffinity(process, sizeof cores, &cores) == 0) CPU_OR(&all, &all, &cores);
    }
  } else {
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);  // the system leaves out those it does not give
  }
  if (CPU_COUNT(&all) > 0) ::sched_setaffinity(0, sizeof all, &all);
  cpu_set_t now;
  return ::sched_getaffinity(0, sizeof now, &now) == 0 ? CPU_COUNT(&now) : 1;
}

void use_one_core(int number) {
  cpu_set_t all;
  if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) == 0) return;
  number %= CPU_COUNT(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &all) || number-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace lockstep::launch
