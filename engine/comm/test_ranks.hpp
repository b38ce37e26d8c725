// For tests: runs ranks as threads or as forked processes, without the launcher.
//
//   for (const std::string& failure : run_ranks(2, Kind::threads, [](int rank) { ... require(x == 1, "x"); }))
//     EXPECT_EQ(failure, "");
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/arena.hpp"

namespace lockstep::comm::testing_ranks {

enum class Kind { threads, processes };

struct World {
  World(int size, Kind kind) : kind_(kind) {
    host =
        device::HostWorld::create(size, kind == Kind::threads ? device::Sharing::threads : device::Sharing::processes,
                                  std::size_t{1} << 30, control_bytes(size));
    prepare_world(*host);
  }
  std::unique_ptr<device::HostWorld> host;
  std::function<void(int rank)> launch;  // optional; runs on each rank before its program begins
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

using Body = std::function<void(int rank)>;

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs a rank's body and announces its begin and end, as the launcher does. Returns the message of the exception that
// the body threw, or "".
inline std::string run_rank(const World& world, int rank, const Body& body, double deadline) {
  if (world.launch) world.launch(rank);
  device::HostWorld& host = *world.host;
  RankContext context(rank, host.world_size(), &host);
  RankScope scope(context);
  std::string failure;
  set_deadline(deadline);
  announce_begin();
  try {
    body(rank);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  announce_end(!failure.empty(), failure);
  return failure;
}

// Runs the body on every rank and returns the failure of each rank. A process killed by a signal returns "signal N".
inline std::vector<std::string> run_ranks(World& world, const Body& body, double deadline = 10.0) {
  const int size = world.host->world_size();
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  if (world.kind() == Kind::threads) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back(
          [&, rank] { failures[static_cast<std::size_t>(rank)] = run_rank(world, rank, body, deadline); });
    for (std::thread& thread : threads) thread.join();
    return failures;
  }
  struct Child {
    pid_t pid;
    int pipe;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("pipe failed");
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string failure = run_rank(world, rank, body, deadline);
      const ssize_t written = ::write(ends[1], failure.data(), failure.size());
      _exit(written == static_cast<ssize_t>(failure.size()) ? 0 : 3);
    }
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  // Children are awaited in the order in which they end, so that a death is announced at once.
  for (int left = size; left > 0; --left) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    for (int rank = 0; rank < size; ++rank) {
      const Child& child = children[static_cast<std::size_t>(rank)];
      if (child.pid != pid) continue;
      if (WIFSIGNALED(status)) {
        failures[static_cast<std::size_t>(rank)] = str("signal ", WTERMSIG(status));
        announce_death(*world.host, rank, str("ended by signal ", WTERMSIG(status)));
      }
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    char buffer[4096];
    const int fd = children[static_cast<std::size_t>(rank)].pipe;
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;)
      failures[static_cast<std::size_t>(rank)].append(buffer, static_cast<std::size_t>(n));
    close(fd);
  }
  return failures;
}

inline std::vector<std::string> run_ranks(int size, Kind kind, const Body& body, double deadline = 10.0) {
  World world(size, kind);
  return run_ranks(world, body, deadline);
}

// Throws unless the condition holds. Also works in forked ranks, where failures of GoogleTest would be lost.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

template <class T>
Tensor tensor_of(const std::vector<T>& values, DType dtype, device::Device at = {}) {
  Tensor tensor = empty({static_cast<std::int64_t>(values.size())}, dtype, at);
  if (!values.empty()) device::write_from_host(tensor.storage()->memory(), 0, values.data(), values.size() * sizeof(T));
  return tensor;
}
template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.num_elements()));
  if (!values.empty())
    device::read_to_host(values.data(), tensor.storage()->memory(),
                         static_cast<std::size_t>(tensor.offset()) * sizeof(T), values.size() * sizeof(T));
  return values;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace lockstep::comm::testing_ranks
