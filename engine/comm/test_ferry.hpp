// For tests: one ferry between a world of two ranks and a host that the test plays, host 1 unless said otherwise. The
// test sends and receives the messages itself.
//
//   TEST_F(OneFerry, Name) { peer_.send(0, FerryKind::abort, ...); EXPECT_TRUE(soon([&] { return ...; })); }
#pragma once

#include <chrono>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "engine/comm/ferry.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/socket_link.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm::testing_ferry {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Passes everything on. While `holds`, no data that it receives counts as complete.
class HoldingLink : public SocketLink {
 public:
  using SocketLink::SocketLink;
  Transfer receive(const Message& message, std::byte* to) override {
    const Transfer transfer = SocketLink::receive(message, to);
    received_.insert(transfer);
    return transfer;
  }
  bool is_done(Transfer transfer) override {
    if (holds && received_.contains(transfer)) return false;
    return SocketLink::is_done(transfer);
  }
  bool holds = false;

 private:
  std::set<Transfer> received_;
};

struct Sockets {
  Sockets() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0); }
  int ends[2];
};

// Those of a host of two that has this one to the other.
inline std::vector<int> sockets_of(int host, int socket) {
  return host == 0 ? std::vector<int>{-1, socket} : std::vector<int>{socket, -1};
}

class OneFerry : public ::testing::Test {
 protected:
  explicit OneFerry(int host = 0)
      : mine_(host, sockets_of(host, sockets_.ends[0])),
        theirs_(1 - host, sockets_of(1 - host, sockets_.ends[1])),
        ferry_(mine_, *world_.host, {host, 2, {0, 1}}, 1),
        peer_(theirs_, 1) {}

  struct Heard {
    FerryKind kind;
    std::string body;
  };

  // Moves both ends once, and keeps what the ferry has sent.
  void turn() {
    ferry_.progress();
    theirs_.progress();
    for (FerryPost::Received received; peer_.receive(received);) {
      heard_.push_back({received.kind, std::string(received.body)});
      peer_.drop(received.message);
    }
  }
  template <class Holds>
  bool soon(const Holds& holds) {
    for (const auto end = Clock::now() + std::chrono::seconds(30); !holds(); turn())
      if (Clock::now() > end) return false;
    return true;
  }
  void turn_for(milliseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) turn();
  }
  // The next message of this kind; earlier ones are dropped.
  std::string next(FerryKind kind) {
    std::string body;
    EXPECT_TRUE(soon([&] {
      while (!heard_.empty()) {
        const Heard heard = std::move(heard_.front());
        heard_.pop_front();
        if (heard.kind != kind) continue;
        body = heard.body;
        return true;
      }
      return false;
    }));
    return body;
  }
  // The next message of this kind as a body, and what follows it.
  template <class Body>
  std::pair<Body, std::string> next_body(FerryKind kind) {
    const std::string bytes = next(kind);
    std::string_view rest = bytes;
    Body body{};
    EXPECT_TRUE(take_body(rest, body));
    return {body, std::string(rest)};
  }
  // The messages of this kind that were heard and not taken.
  template <class Body>
  std::vector<Body> heard(FerryKind kind) {
    std::vector<Body> found;
    for (const Heard& each : heard_) {
      std::string_view rest = each.body;
      Body body{};
      if (each.kind == kind && take_body(rest, body)) found.push_back(body);
    }
    return found;
  }
  GroupControl& group(const std::vector<int>& members, std::uint64_t channel = 0) {
    return find_or_insert_group(control_, members, channel);
  }

  Sockets sockets_;
  HoldingLink mine_;
  SocketLink theirs_;
  testing_ranks::World world_{2, testing_ranks::Kind::threads};
  WorldControl& control_ = control_of(*world_.host);
  Ferry ferry_;
  FerryPost peer_;
  std::deque<Heard> heard_;
};

// The ferry is that of host 1, and the test is host 0.
class FerryOfSecondHost : public OneFerry {
 protected:
  FerryOfSecondHost() : OneFerry(1) {}
};

}  // namespace lockstep::comm::testing_ferry
