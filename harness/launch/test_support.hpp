// Helpers of this folder's tests: simple rank functions, and the state of processes.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/text.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::launch::testing_support {

inline verdict::RankOutcome fine(int rank) {
  verdict::RankOutcome outcome;
  outcome.rank = rank;
  outcome.evidence.comparisons = 10 + rank;
  return outcome;
}

inline LaunchOptions options_for(int world_size, Launch launch) {
  LaunchOptions options;
  options.world_size = world_size;
  options.launch = launch;
  options.timeout_seconds = 20;
  return options;
}

inline int num_open_files() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// A port of the loopback interface at which nobody listens now.
inline int free_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return ntohs(address.sin_port);
}

inline bool has_children() { return waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

// "R", "S", "T" (stopped), "Z", ...; empty when there is no such process.
inline std::string state_of(pid_t pid) {
  std::ifstream stat(str("/proc/", pid, "/stat"));
  std::string number, name, state;
  stat >> number >> name >> state;
  return state;
}

inline bool is_alive(pid_t pid) {
  const std::string state = state_of(pid);
  return !state.empty() && state != "Z" && state != "X";
}

[[noreturn]] inline void crash() {
  raise(SIGSEGV);
  std::abort();
}

}  // namespace lockstep::launch::testing_support
