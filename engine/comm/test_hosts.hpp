// For tests: runs ranks on several hosts of this machine. A host is a forked process with a world of its own.
//
//   for (const std::string& failure : run_hosts({0, 0, 1}, [](int rank) { ... })) EXPECT_EQ(failure, "");
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/ferry.hpp"
#include "engine/comm/socket_link.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm::testing_hosts {

using testing_ranks::Body;
using WrapLink = std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)>;

inline void nap(int wake, int link, std::int64_t ns) {
  pollfd fds[] = {{wake, POLLIN, 0}, {link, POLLIN, 0}};
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  ::ppoll(fds, link >= 0 ? 2 : 1, &time, nullptr);
}

// The launcher of one host: forks its ranks and moves its ferry until all hosts have ended. Returns the failures of its
// ranks, "" for others.
inline std::vector<std::string> run_host(Link& link, const HostMap& map, const Body& body, double deadline,
                                         std::uint64_t case_number = 1) {
  const int size = static_cast<int>(map.host_of.size());
  testing_ranks::World world(size, testing_ranks::Kind::processes);
  Ferry ferry(link, *world.host, map, case_number);
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  struct Child {
    int rank;
    pid_t pid;
    int pipe;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    if (!map.is_local(rank)) continue;
    int ends[2];
    if (pipe(ends) != 0) throw Error("pipe failed");
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string failure = testing_ranks::run_rank(world, rank, body, deadline);
      const ssize_t written = ::write(ends[1], failure.data(), failure.size());
      _exit(written == static_cast<ssize_t>(failure.size()) ? 0 : 3);
    }
    close(ends[1]);
    children.push_back({rank, pid, ends[0]});
  }
  while (!ferry.finished()) {
    const std::int64_t sleep = ferry.progress();
    for (Child& child : children) {
      int status = 0;
      if (child.pid < 0 || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.pid = -1;
      if (WIFSIGNALED(status)) {
        failures[static_cast<std::size_t>(child.rank)] = str("signal ", WTERMSIG(status));
        announce_death(*world.host, child.rank, str("ended by signal ", WTERMSIG(status)));
      }
      char buffer[4096];
      for (ssize_t n; (n = ::read(child.pipe, buffer, sizeof buffer)) > 0;)
        failures[static_cast<std::size_t>(child.rank)].append(buffer, static_cast<std::size_t>(n));
      close(child.pipe);
    }
    const auto gone = [](const Child& child) { return child.pid < 0; };
    if (std::all_of(children.begin(), children.end(), gone)) ferry.end();
    if (sleep > 0) nap(ferry.wake_descriptor(), link.descriptor(), std::min<std::int64_t>(sleep, 2'000'000));
  }
  for (int tries = 0; tries < 1000 && !link.has_sent_all(); ++tries) usleep(1000);
  return failures;
}

// Runs the body on every rank, each on the host of that number, and returns the failure of each rank. `wrap` replaces
// the links.
inline std::vector<std::string> run_hosts(const std::vector<int>& host_of, const Body& body, const WrapLink& wrap = {},
                                          double deadline = 10.0) {
  const int num_hosts = 1 + *std::max_element(host_of.begin(), host_of.end());
  std::vector<std::vector<int>> sockets(static_cast<std::size_t>(num_hosts),
                                        std::vector<int>(static_cast<std::size_t>(num_hosts), -1));
  for (std::size_t a = 0; a < sockets.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw Error("socketpair failed");
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  struct Launcher {
    pid_t pid;
    int pipe;
  };
  std::vector<Launcher> launchers;
  for (int host = 0; host < num_hosts; ++host) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("pipe failed");
    const pid_t pid = fork();
    if (pid == 0) {
      for (int other = 0; other < num_hosts; ++other)
        for (const int fd : sockets[static_cast<std::size_t>(other)])
          if (other != host && fd >= 0) close(fd);
      std::unique_ptr<Link> link = std::make_unique<SocketLink>(host, sockets[static_cast<std::size_t>(host)]);
      if (wrap) link = wrap(std::move(link));
      std::string all;
      const std::vector<std::string> failures = run_host(*link, {host, num_hosts, host_of}, body, deadline);
      for (const std::string& failure : failures) all += failure + '\0';
      const ssize_t written = ::write(ends[1], all.data(), all.size());
      _exit(written == static_cast<ssize_t>(all.size()) ? 0 : 3);
    }
    close(ends[1]);
    launchers.push_back({pid, ends[0]});
  }
  for (const std::vector<int>& row : sockets)
    for (const int fd : row)
      if (fd >= 0) close(fd);
  std::vector<std::string> failures(host_of.size());
  for (std::size_t host = 0; host < launchers.size(); ++host) {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::read(launchers[host].pipe, buffer, sizeof buffer)) > 0;)
      all.append(buffer, static_cast<std::size_t>(n));
    close(launchers[host].pipe);
    int status = 0;
    waitpid(launchers[host].pid, &status, 0);
    std::size_t at = 0;
    for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
      const std::size_t end = all.find('\0', at);
      if (host_of[rank] == static_cast<int>(host))
        failures[rank] =
            end == std::string::npos ? str("its launcher ended with status ", status) : all.substr(at, end - at);
      at = end == std::string::npos ? all.size() : end + 1;
    }
  }
  return failures;
}

}  // namespace lockstep::comm::testing_hosts
