// One ferry between a world of two ranks and a host that the test plays: it sends and receives the messages itself.
#include "engine/comm/ferry.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/crossing_plan.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/socket_link.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm {
namespace {

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

TEST_F(OneFerry, PoisonsAGroupWhosePieceNeverComesAfterAWhile) {
  GroupControl& all = group({0, 1});
  PieceBody piece{};
  piece.group = all.id;
  piece.member = 1;
  peer_.send(0, FerryKind::staged_piece, piece, "a piece of a collective that is not open");
  PoisonBody poison{};
  poison.group = all.id;
  poison.by_end = 1;
  const auto sent = Clock::now();
  peer_.send(0, FerryKind::poison, poison, "the reason");
  ASSERT_TRUE(soon([&] { return all.poison.is_set(); }));
  EXPECT_GE(Clock::now() - sent, milliseconds(199));
  EXPECT_EQ(all.poison.read(), "the reason");
  EXPECT_EQ(all.poisoned_by_end.load(), 1U);
}

TEST_F(OneFerry, PoisonsTheGroupsOfACycleTogether) {
  GroupControl &first = group({0, 1}), &second = group({0, 1}, 7);
  PoisonBody poison{};
  poison.group = first.id;
  poison.more_follow = 1;
  peer_.send(0, FerryKind::propose, poison, "a cycle");
  turn_for(milliseconds(50));
  EXPECT_FALSE(first.poison.is_set());
  poison.group = second.id;
  poison.more_follow = 0;
  peer_.send(0, FerryKind::propose, poison, "a cycle");
  const auto sent = Clock::now();
  ASSERT_TRUE(soon([&] { return second.poison.is_set(); }));
  EXPECT_TRUE(first.poison.is_set());
  EXPECT_LT(Clock::now() - sent, milliseconds(140));
  // The decision goes to the other host.
  EXPECT_THAT(next(FerryKind::poison), ::testing::EndsWith("a cycle"));
  EXPECT_THAT(next(FerryKind::poison), ::testing::EndsWith("a cycle"));
}

TEST_F(OneFerry, PoisonsTheFirstGroupAloneIfTheSecondNeverComes) {
  GroupControl& first = group({0, 1});
  PoisonBody poison{};
  poison.group = first.id;
  poison.more_follow = 1;
  peer_.send(0, FerryKind::propose, poison, "a cycle");
  EXPECT_TRUE(soon([&] { return first.poison.is_set(); }));
}

TEST_F(OneFerry, PoisonsAGroupWithTheTextThatARankProposedFirst) {
  GroupControl& all = group({0, 1});
  const auto plane = open_control_plane(control_, 0);
  plane->propose_poison(all, "the first reason", Cause::peer_ended, false);
  plane->propose_poison(all, "a later one", Cause::own, false);
  ASSERT_TRUE(soon([&] { return all.poison.is_set(); }));
  EXPECT_EQ(all.poison.read(), "the first reason");
  EXPECT_EQ(all.poisoned_by_end.load(), 1U);
}

TEST_F(OneFerry, NoticesOfTwoThreadsWaitForRoomInTurn) {
  GroupControl& all = group({0, 1});
  const auto plane = open_control_plane(control_, 0);
  for (std::uint64_t round = 0; round < Outbox::capacity; ++round) plane->ended_round(all, 0, round);
  std::thread one([&] { plane->ended_round(all, 0, 1001); }), other([&] { plane->ended_round(all, 0, 1002); });
  std::this_thread::sleep_for(milliseconds(50));  // both wait
  Outbox& outbox = control_.rank(0).outbox;
  EXPECT_EQ(outbox.written.load(), Outbox::capacity);
  outbox.taken.store(2);
  one.join();
  other.join();
  EXPECT_EQ(outbox.written.load(), Outbox::capacity + 2);
  const std::set<std::uint64_t> last = {outbox.notices[0].sequence, outbox.notices[1].sequence};
  EXPECT_EQ(last, (std::set<std::uint64_t>{1001, 1002}));
}

// As a search for a deadlock reads them.
TEST_F(OneFerry, WaitsOfAPeerAreNeverReadHalfWritten) {
  GroupControl& all = group({0, 1});
  RankControl& rank = control_.rank(1);
  std::atomic<bool> over = false;
  std::int64_t whole = 0, torn = 0;
  std::thread reader([&] {
    const WaitEntry& entry = rank.wait_entries[0];
    for (bool last = false; !last;) {
      last = over.load();
      const std::uint64_t changes = rank.wait_changes.load();
      if (rank.blocked_at.load() != changes + 1) continue;
      const bool is_there = entry.group.load() == control_.offset_of(&all);
      const std::uint64_t sequence = entry.sequence.load(), target = entry.target.load();
      if (rank.wait_changes.load() != changes) continue;
      ++(is_there && sequence == target ? whole : torn);
    }
  });
  constexpr std::uint64_t num = 3000;
  for (std::uint64_t count = 1; count <= num; ++count) {
    RankBody body{};
    body.rank = 1;
    body.has_begun = 1;
    body.waits = 1;
    body.wait_changes = count;
    body.blocked_at = count + 1;
    body.num_waits = 1;
    WaitBody wait{};
    wait.group = all.id;
    wait.sequence = wait.target = count;
    wait.me = 1;
    peer_.send(0, FerryKind::rank_state, body, ferry_bytes(wait));
    turn();
  }
  EXPECT_TRUE(soon([&] { return rank.wait_entries[0].target.load() == num; }));
  turn_for(milliseconds(1));
  over = true;
  reader.join();
  EXPECT_GT(whole, 0);
  EXPECT_EQ(torn, 0);
}

TEST_F(OneFerry, SendsNoWaitThatIsBeingWritten) {
  GroupControl& all = group({0, 1});
  RankControl& rank = control_.rank(0);
  rank.wait_entries[0].group.store(1);  // as a wait leaves it that has begun to write
  rank.wait_entries[1].sequence.store(7);
  rank.wait_entries[1].group.store(control_.offset_of(&all));
  rank.wait_changes.store(2);
  const std::string state = next(FerryKind::rank_state);
  std::string_view rest = state;
  RankBody body;
  WaitBody wait;
  ASSERT_TRUE(take_body(rest, body));
  EXPECT_EQ(body.num_waits, 1U);
  ASSERT_TRUE(take_body(rest, wait));
  EXPECT_EQ(wait.group, all.id);
  EXPECT_EQ(wait.sequence, 7U);
  EXPECT_EQ(rest, "");
}

TEST_F(OneFerry, LosesAHostThatBreaksThePromisesOfTheLink) {
  theirs_.send(0, Channel::ranks, "no head");
  ASSERT_TRUE(soon([&] { return control_.abort.is_set(); }));
  ASSERT_EQ(ferry_.lost().size(), 1U);
  EXPECT_EQ(ferry_.lost()[0].host, 1);
  EXPECT_THAT(ferry_.lost()[0].why, ::testing::HasSubstr("does not keep its promises: a message has only 7 bytes"));
  ferry_.end();
  EXPECT_TRUE(soon([&] { return ferry_.finished(); })) << "it waits for the end of a host that it has lost";
}

TEST_F(OneFerry, EndsAfterTheLastTransferIntoItsMemory) {
  std::string failure;
  std::thread rank([&] {
    const testing_ranks::Body body = [](int) {
      all_reduce(world_group(), testing_ranks::tensor_of(std::vector<float>(20000, 1.0F), DType::float32),
                 ReduceOp::sum);
    };
    failure = testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  const std::string arrived = next(FerryKind::arrival);
  std::string_view rest = arrived;
  ArrivalBody arrival;
  ASSERT_TRUE(take_body(rest, arrival));
  arrival.member = 1;
  peer_.send(0, FerryKind::arrival, arrival);
  // The summand of the other rank, which arrives but is held.
  mine_.holds = true;
  const CrossingShape shape(arrival.fingerprint, {0, 1});
  const std::vector<std::byte> summand(sizeof(float) * 20000);
  for (const Piece& piece : pieces_owned(shape, 0)) {
    DataBody body{};
    body.group = arrival.group;
    body.sequence = arrival.sequence;
    body.begin = piece.begin;
    body.n = piece.n;
    body.member = 1;
    peer_.send_data(0, body, summand.data(), static_cast<std::size_t>(piece.n) * sizeof(float));
  }
  next(FerryKind::data);
  announce_abort(*world_.host, "the test is over");
  rank.join();
  EXPECT_THAT(failure, ::testing::HasSubstr("the test is over"));
  ferry_.end();
  peer_.send_bytes(0, FerryKind::end, "");
  turn_for(milliseconds(100));
  EXPECT_FALSE(ferry_.finished()) << "data still comes into its memory";
  mine_.holds = false;
  EXPECT_TRUE(soon([&] { return ferry_.finished(); }));
}

}  // namespace
}  // namespace lockstep::comm
