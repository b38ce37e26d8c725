// For tests: one ferry between a world of two ranks and a host that the test plays. Host 1 is the test's: it sends and
// receives the messages itself.
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

class OneFerry : public ::testing::Test {
 protected:
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
  HoldingLink mine_{0, {-1, sockets_.ends[0]}};
  SocketLink theirs_{1, {sockets_.ends[1], -1}};
  testing_ranks::World world_{2, testing_ranks::Kind::threads};
  WorldControl& control_ = control_of(*world_.host);
  Ferry ferry_{mine_, *world_.host, {0, 2, {0, 1}}, 1};
  FerryPost peer_{theirs_, 1};
  std::deque<Heard> heard_;
};

}  // namespace lockstep::comm::testing_ferry
