#include "harness/launch/rendezvous.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/socket_link.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/test_support.hpp"

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::free_port;

struct Ended {
  std::vector<int> sockets;
  std::string error;
};

// Each of these processes, as a thread.
std::vector<Ended> connect(const std::vector<Rendezvous>& processes) {
  std::vector<Ended> ended(processes.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        ended[i].sockets = connect_all(processes[i]);
      } catch (const Error& error) {
        ended[i].error = error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ended;
}

std::vector<Rendezvous> processes_at(const std::string& address, int num, double seconds = 20.0) {
  std::vector<Rendezvous> processes;
  const int port = free_port();
  for (int rank = 0; rank < num; ++rank) processes.push_back({address, port, rank, num, seconds, {}});
  return processes;
}

void close_all(const std::vector<Ended>& ended) {
  for (const Ended& each : ended)
    for (int socket : each.sockets)
      if (socket >= 0) ::close(socket);
}

TEST(Rendezvous, ConnectsEachWithEach) {
  for (const char* address : {"127.0.0.1", "localhost"}) {
    std::vector<Ended> ended = connect(processes_at(address, 5));
    std::vector<std::unique_ptr<comm::SocketLink>> links;
    for (int rank = 0; rank < 5; ++rank) {
      Ended& each = ended[static_cast<std::size_t>(rank)];
      ASSERT_EQ(each.error, "");
      links.push_back(std::make_unique<comm::SocketLink>(rank, std::move(each.sockets)));
    }
    for (int from = 0; from < 5; ++from)
      for (int to = 0; to < 5; ++to)
        if (to != from) links[static_cast<std::size_t>(from)]->send(to, comm::Channel::launcher, str(from, " to ", to));
    for (int to = 0; to < 5; ++to) {
      std::vector<std::string> texts(5);
      for (int left = 4; left > 0;) {
        for (const auto& link : links) link->progress();
        comm::Message message;
        if (!links[static_cast<std::size_t>(to)]->poll(comm::Channel::launcher, message)) continue;
        texts[static_cast<std::size_t>(message.from)] = message.bytes;
        --left;
      }
      for (int from = 0; from < 5; ++from)
        EXPECT_EQ(texts[static_cast<std::size_t>(from)], from == to ? "" : str(from, " to ", to));
    }
  }
}

TEST(Rendezvous, WaitsForAProcessThatStartsLate) {
  const std::vector<Rendezvous> processes = processes_at("127.0.0.1", 2);
  std::vector<Ended> late(1);
  std::thread first([&] { late = connect({processes[1]}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::vector<Ended> ended = connect({processes[0]});
  first.join();
  EXPECT_EQ(ended[0].error, "");
  EXPECT_EQ(late[0].error, "");
  close_all(ended);
  close_all(late);
}

TEST(Rendezvous, NamesTheMissingRanksOnEveryProcess) {
  const int before = testing_support::num_open_files();
  std::vector<Rendezvous> processes = processes_at("127.0.0.1", 4, 0.5);
  processes.erase(processes.begin() + 2);
  const std::vector<Ended> ended = connect(processes);
  for (const Ended& each : ended) EXPECT_THAT(each.error, HasSubstr("rank 2 of 4 did not connect within 0.5 s"));
  EXPECT_EQ(testing_support::num_open_files(), before);
}

TEST(Rendezvous, NamesAnAddressThatNobodyListensAt) {
  std::vector<Rendezvous> processes = processes_at("127.0.0.1", 2, 0.3);
  processes.erase(processes.begin());
  EXPECT_THAT(connect(processes)[0].error,
              AllOf(HasSubstr("rank 1 could not connect to 127.0.0.1:"), HasSubstr("Connection refused")));
  processes[0].address = "no-such-machine.invalid";
  EXPECT_THAT(connect(processes)[0].error, HasSubstr("rank 1 could not connect to no-such-machine.invalid:"));
}

TEST(Rendezvous, RefusesARankThatComesTwiceAndAnotherWorldSize) {
  std::vector<Rendezvous> processes = processes_at("127.0.0.1", 3, 2.0);
  processes[2].rank = 1;
  std::vector<Ended> ended = connect(processes);
  EXPECT_THAT(ended[0].error, HasSubstr("two processes say RANK=1"));
  EXPECT_THAT(ended[1].error, HasSubstr("rank 0 says: two processes say RANK=1"));
  EXPECT_THAT(ended[2].error, HasSubstr("rank 0 says: two processes say RANK=1"));
  processes = processes_at("127.0.0.1", 2, 2.0);
  processes[1].world_size = 3;
  ended = connect(processes);
  EXPECT_THAT(ended[0].error, HasSubstr("a process says WORLD_SIZE=3, the process of rank 0 says WORLD_SIZE=2"));
  EXPECT_THAT(ended[1].error, HasSubstr("rank 0 says: a process says WORLD_SIZE=3"));
}

TEST(Rendezvous, ClosesConnectionsOfStrangers) {
  const std::vector<Rendezvous> processes = processes_at("127.0.0.1", 2);
  std::thread stranger([&] {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(processes[0].port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    while (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::usleep(1000);
    const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    char answer;
    EXPECT_LE(::recv(socket, &answer, 1, 0), 0);
    ::close(socket);
  });
  std::vector<Ended> first(1);
  std::thread zero([&] { first = connect({processes[0]}); });
  stranger.join();
  const std::vector<Ended> second = connect({processes[1]});
  zero.join();
  EXPECT_EQ(first[0].error, "");
  EXPECT_EQ(second[0].error, "");
  close_all(first);
  close_all(second);
}

TEST(Rendezvous, EndsWhenTheRunIsInterrupted) {
  std::vector<Rendezvous> processes = processes_at("127.0.0.1", 2);
  processes.pop_back();
  processes[0].stop = [] { return true; };
  EXPECT_THAT(connect(processes)[0].error, HasSubstr("interrupted"));
}

}  // namespace
}  // namespace lockstep::launch
