// The order of what a ferry does: poison and waits. ferry_messages_test.cpp looks at single messages,
// ferry_data_test.cpp at transfers.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/test_ferry.hpp"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing_ferry::Clock;
using testing_ferry::OneFerry;

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
  GroupControl &first = group({0, 1}), &second = group({0, 1}, 5), &third = group({0, 1}, 7);
  PoisonBody poison{};
  poison.group = first.id;
  poison.more_follow = 1;
  peer_.send(0, FerryKind::propose, poison, "a cycle");
  poison.group = second.id;
  peer_.send(0, FerryKind::propose, poison, "a cycle");
  turn_for(milliseconds(50));
  EXPECT_FALSE(first.poison.is_set());
  EXPECT_FALSE(second.poison.is_set());
  poison.group = third.id;
  poison.more_follow = 0;
  peer_.send(0, FerryKind::propose, poison, "a cycle");
  const auto sent = Clock::now();
  ASSERT_TRUE(soon([&] { return third.poison.is_set(); }));
  EXPECT_TRUE(first.poison.is_set());
  EXPECT_TRUE(second.poison.is_set());
  EXPECT_LT(Clock::now() - sent, milliseconds(140));
  // The decisions go to the other host.
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
  EXPECT_THAT(ferry_.awaited(), ::testing::IsEmpty());
  ferry_.end();
  EXPECT_TRUE(soon([&] { return ferry_.finished(); })) << "it waits for the end of a host that it has lost";
}

TEST_F(OneFerry, LosesAHostWhoseConnectionHasEnded) {
  turn_for(milliseconds(5));
  EXPECT_THAT(ferry_.lost(), ::testing::IsEmpty());
  EXPECT_THAT(ferry_.awaited(), ::testing::ElementsAre(1));
  EXPECT_EQ(control_.rank(1).end.load(), RankEnd::none);
  ::shutdown(sockets_.ends[1], SHUT_RDWR);
  ASSERT_TRUE(soon([&] { return !ferry_.lost().empty(); }));
  ASSERT_EQ(ferry_.lost().size(), 1U);
  EXPECT_EQ(ferry_.lost()[0].host, 1);
  EXPECT_EQ(ferry_.lost()[0].why, "its launcher has ended or the connection is broken");
  // Its ranks have died. The others go on.
  EXPECT_EQ(control_.rank(1).end.load(), RankEnd::died);
  EXPECT_EQ(control_.rank(1).end_reason.read(),
            "its host (number 1) is lost: its launcher has ended or the connection is broken");
  EXPECT_EQ(control_.rank(0).end.load(), RankEnd::none);
  EXPECT_FALSE(control_.abort.is_set());
  EXPECT_FALSE(ferry_.finished()) << "its own ranks run";
  ferry_.end();
  EXPECT_TRUE(soon([&] { return ferry_.finished(); }));
  EXPECT_EQ(ferry_.lost().size(), 1U);
}

using testing_ferry::FerryOfSecondHost;

TEST_F(FerryOfSecondHost, LosesTheFirstHost) {
  turn_for(milliseconds(5));
  EXPECT_THAT(ferry_.lost(), ::testing::IsEmpty());
  EXPECT_THAT(ferry_.awaited(), ::testing::ElementsAre(0));
  ::shutdown(sockets_.ends[1], SHUT_RDWR);
  ASSERT_TRUE(soon([&] { return !ferry_.lost().empty(); }));
  EXPECT_EQ(ferry_.lost()[0].host, 0);
  EXPECT_EQ(control_.rank(0).end.load(), RankEnd::died);
  EXPECT_EQ(control_.rank(1).end.load(), RankEnd::none);
}

// Rank 0 waits for rank 1 in their group, and rank 1 for rank 0 in a channel of it. Host 0 decides about both.
TEST_F(FerryOfSecondHost, ProposesTheGroupsOfACycleTogether) {
  GroupControl &all = group({0, 1}), &channel = group({0, 1}, all.id);
  std::string failure;
  std::thread rank([&] {
    const testing_ranks::Body body = [](int) {
      receive(world_group(), testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32), 0);
    };
    failure = testing_ranks::run_rank(world_, 1, body, 60.0);
  });
  RankBody state{};
  state.has_begun = 1;
  state.waits = 1;
  state.wait_changes = 1;
  state.blocked_at = 2;
  state.num_waits = 1;
  WaitBody wait{};
  wait.group = all.id;
  wait.reason = static_cast<std::uint32_t>(WaitReason::arrivals);
  peer_.send(1, FerryKind::rank_state, state, ferry_bytes(wait));
  const auto [first, text] = next_body<PoisonBody>(FerryKind::propose);
  EXPECT_EQ(first.group, all.id);
  EXPECT_EQ(first.more_follow, 1U);
  EXPECT_THAT(text, ::testing::StartsWith("deadlock: rank 0 waits for rank 1"));
  const auto [second, same] = next_body<PoisonBody>(FerryKind::propose);
  EXPECT_EQ(second.group, channel.id);
  EXPECT_EQ(second.more_follow, 0U);
  EXPECT_EQ(same, text);
  for (const GroupControl* each : {&all, &channel}) {
    PoisonBody poison{};
    poison.group = each->id;
    peer_.send(1, FerryKind::poison, poison, text);
  }
  ASSERT_TRUE(soon([&] { return channel.poison.is_set(); }));
  rank.join();
  EXPECT_THAT(failure, ::testing::HasSubstr("deadlock: rank 0 waits for rank 1"));
}

// Calls a function, once, when the ferry next looks for messages, in the middle of its turn.
class InterruptedLink : public SocketLink {
 public:
  using SocketLink::SocketLink;
  bool poll(Channel channel, Message& message) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return SocketLink::poll(channel, message);
  }
  std::function<void()> meanwhile;
};

TEST(FerryInTheMiddleOfItsTurn, SendsTheLastNoticeOfARankBeforeItsEnd) {
  testing_ferry::Sockets sockets;
  InterruptedLink mine(0, testing_ferry::sockets_of(0, sockets.ends[0]));
  SocketLink theirs(1, testing_ferry::sockets_of(1, sockets.ends[1]));
  testing_ranks::World world(2, testing_ranks::Kind::threads);
  WorldControl& control = control_of(*world.host);
  Ferry ferry(mine, *world.host, {0, 2, {0, 1}}, 1);
  FerryPost peer(theirs, 1);
  mine.meanwhile = [&] {
    open_control_plane(control, 0)->ended_round(find_or_insert_group(control, {0, 1}, 0), 0, 1);
    control.rank(0).end.store(RankEnd::ended);
    notify_all(control);
  };
  std::vector<FerryKind> heard;
  for (const auto end = Clock::now() + std::chrono::seconds(30); heard.size() < 2 && Clock::now() < end;) {
    ferry.progress();
    theirs.progress();
    for (FerryPost::Received received; peer.receive(received);)
      if (received.kind == FerryKind::end_of_round || received.kind == FerryKind::rank_state)
        heard.push_back(received.kind);
  }
  EXPECT_THAT(heard, ::testing::ElementsAre(FerryKind::end_of_round, FerryKind::rank_state));
}

// The test is hosts 1 and 2.
TEST(FerryOfThreeHosts, AwaitsTheHostsThatHaveNotEnded) {
  testing_ferry::Sockets to_second, to_third, between;
  SocketLink mine(0, {-1, to_second.ends[0], to_third.ends[0]});
  SocketLink second(1, {to_second.ends[1], -1, between.ends[0]}), third(2, {to_third.ends[1], between.ends[1], -1});
  testing_ranks::World world(3, testing_ranks::Kind::threads);
  Ferry ferry(mine, *world.host, {0, 3, {0, 1, 2}}, 1);
  FerryPost of_second(second, 1), of_third(third, 1);
  const auto soon_awaits = [&](const std::vector<int>& hosts) {
    for (const auto end = Clock::now() + std::chrono::seconds(5); ferry.awaited() != hosts && Clock::now() < end;) {
      ferry.progress();
      second.progress();
      third.progress();
    }
    return ferry.awaited() == hosts;
  };
  EXPECT_THAT(ferry.awaited(), ::testing::ElementsAre(1, 2));
  of_second.send_bytes(0, FerryKind::end, "");
  EXPECT_TRUE(soon_awaits({2}));
  ferry.end();
  ferry.progress();
  EXPECT_FALSE(ferry.finished()) << "host 2 has not ended";
  of_third.send_bytes(0, FerryKind::end, "");
  EXPECT_TRUE(soon_awaits({1, 2})) << "a transfer with any of them may be open";
  EXPECT_THAT(ferry.lost(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::comm
