// For tests: launchers of several hosts, as forked processes of this machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/socket_link.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/hosts.hpp"
#include "harness/launch/launcher_link.hpp"
#include "harness/launch/test_support.hpp"

namespace lockstep::launch::testing_support {

// The sockets of every process to every other one.
inline std::vector<std::vector<int>> socket_pairs(std::size_t num) {
  std::vector<std::vector<int>> sockets(num, std::vector<int>(num, -1));
  for (std::size_t a = 0; a < num; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw Error("socketpair failed");
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  }
  return sockets;
}

// Launchers as a launcher of processes would have started them; the other processes of their hosts do not exist.
class TestProcesses : public Processes {
 public:
  TestProcesses(std::vector<int> host_of, std::unique_ptr<comm::Link> link)
      : host_of_(std::move(host_of)), link_(std::move(link)) {}
  int rank() const override {
    return static_cast<int>(std::find(host_of_.begin(), host_of_.end(), link_->host()) - host_of_.begin());
  }
  const std::vector<int>& host_of() const override { return host_of_; }
  comm::Link* link() override { return link_.get(); }
  int wait_for_launcher() override { return 3; }
  void end(int) override {}

 private:
  std::vector<int> host_of_;
  std::unique_ptr<comm::Link> link_;
};

struct EndedLauncher {
  std::string said;
  int status = 0;  // of waitpid()
  double seconds = 0.0;
};

using MakeLink = std::function<std::unique_ptr<comm::Link>(int host, std::vector<int> sockets)>;
inline std::unique_ptr<comm::Link> socket_link(int host, std::vector<int> sockets) {
  return std::make_unique<comm::SocketLink>(host, std::move(sockets));
}

// Runs `body` in the launcher of each host, and returns the texts that they return. `meanwhile` gets their processes.
inline std::vector<EndedLauncher> run_launchers(const std::vector<int>& host_of,
                                                const std::function<std::string(Hosts&)>& body,
                                                const std::function<void(const std::vector<pid_t>&)>& meanwhile = {},
                                                const MakeLink& make_link = socket_link) {
  const auto begin = std::chrono::steady_clock::now();
  const auto num = static_cast<std::size_t>(1 + *std::max_element(host_of.begin(), host_of.end()));
  std::vector<std::vector<int>> sockets = socket_pairs(num);
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (std::size_t host = 0; host < num; ++host) {
    int ends[2];
    if (::pipe(ends) != 0) throw Error("pipe failed");
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (std::size_t other = 0; other < num; ++other)
        for (int socket : sockets[other])
          if (other != host && socket >= 0) ::close(socket);
      std::string said;
      try {
        TestProcesses processes(host_of, make_link(static_cast<int>(host), sockets[host]));
        Hosts hosts(processes, {});
        said = body(hosts);
      } catch (const std::exception& error) {
        said = error.what();
      }
      const ssize_t written = ::write(ends[1], said.data(), said.size());
      ::_exit(written == static_cast<ssize_t>(said.size()) ? 0 : 9);
    }
    ::close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  for (const std::vector<int>& row : sockets)
    for (int socket : row)
      if (socket >= 0) ::close(socket);
  if (meanwhile) meanwhile(pids);
  std::vector<EndedLauncher> ended(num);
  for (std::size_t host = 0; host < num; ++host) {
    char buffer[4096];
    for (ssize_t n; (n = ::read(pipes[host], buffer, sizeof buffer)) > 0;)
      ended[host].said.append(buffer, static_cast<std::size_t>(n));
    ::close(pipes[host]);
    ::waitpid(pids[host], &ended[host].status, 0);
    ended[host].seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return ended;
}

}  // namespace lockstep::launch::testing_support
