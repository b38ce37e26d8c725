// What a ferry sends of its own ranks, and what it writes for those of another host, message by message.
#include "engine/comm/ferry_messages.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/test_ferry.hpp"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing_ferry::OneFerry;

RecordBytes record_of_call(std::uint64_t sequence) {
  Record record{};
  record.sequence = sequence;
  RecordBytes bytes;
  std::memcpy(bytes.data(), static_cast<const void*>(&record), sizeof record);
  return bytes;
}

using FerryMessages = OneFerry;

TEST_F(FerryMessages, TellTheWaitsOfARankOnceTheyHaveLasted) {
  GroupControl& all = group({0, 1});
  RankControl& rank = control_.rank(0);
  rank.begun_ns.store(1);
  std::strcpy(rank.location.step, "all_reduce");
  std::strcpy(rank.location.file, "here.yaml");
  rank.location.line = 12;
  rank.location.column = 5;
  rank.records[3].sequence = 8;
  rank.num_records.store(4);
  WaitEntry& entry = rank.wait_entries[2];
  entry.sequence.store(8);
  entry.round.store(3);
  entry.target.store(6);
  entry.record.store(3);
  entry.reason.store(1);
  entry.me.store(0);
  entry.member.store(1);
  entry.group.store(control_.offset_of(&all));
  rank.waits.store(1);
  rank.blocked_at.store(5);
  rank.wait_changes.store(4);
  std::pair<RankBody, std::string> state = next_body<RankBody>(FerryKind::rank_state);
  if (state.first.wait_changes == 0)
    state = next_body<RankBody>(FerryKind::rank_state);  // the first one says that the rank begins
  const RankBody& body = state.first;
  EXPECT_EQ(body.rank, 0);
  EXPECT_EQ(body.end, RankEnd::none);
  EXPECT_EQ(body.has_begun, 1U);
  EXPECT_EQ(body.waits, 1U);
  EXPECT_EQ(body.wait_changes, 4U);
  EXPECT_EQ(body.blocked_at, 5U);
  EXPECT_STREQ(body.step, "all_reduce");
  EXPECT_STREQ(body.file, "here.yaml");
  EXPECT_EQ(body.line, 12);
  EXPECT_EQ(body.column, 5);
  EXPECT_EQ(body.last_group, 0U) << "a rank that has not ended may call again";
  ASSERT_EQ(body.num_waits, 1U);
  std::string_view rest = state.second;
  WaitBody wait{};
  ASSERT_TRUE(take_body(rest, wait));
  EXPECT_EQ(wait.group, all.id);
  EXPECT_EQ(wait.sequence, 8U);
  EXPECT_EQ(wait.round, 3U);
  EXPECT_EQ(wait.target, 6U);
  EXPECT_EQ(wait.reason, 1U);
  EXPECT_EQ(wait.me, 0U);
  EXPECT_EQ(wait.member, 1);
  Record record{};
  std::memcpy(static_cast<void*>(&record), wait.record.data(), sizeof record);
  EXPECT_EQ(record.sequence, 8U);
  EXPECT_EQ(rest, "");
  turn_for(milliseconds(50));
  EXPECT_THAT(heard<RankBody>(FerryKind::rank_state), ::testing::IsEmpty()) << "nothing has changed since";
}

TEST_F(FerryMessages, TellTheRoundOfTheCallThatWaits) {
  std::string failure;
  std::thread rank([&] {
    const testing_ranks::Body body = [](int) {
      const Tensor x = testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32);
      end_round(world_group(), false);
      all_reduce(world_group(), x, ReduceOp::sum, {.in_round = true});
    };
    failure = testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  RankBody state{};
  WaitBody wait{};
  for (int i = 0; i < 10 && state.num_waits == 0; ++i) {  // the first one says that the rank begins
    const auto [body, rest] = next_body<RankBody>(FerryKind::rank_state);
    state = body;
    std::string_view left = rest;
    take_body(left, wait);
  }
  EXPECT_EQ(state.num_waits, 1U);
  EXPECT_EQ(wait.sequence, 0U);
  EXPECT_EQ(wait.round, 2U);
  EXPECT_EQ(wait.reason, static_cast<std::uint32_t>(WaitReason::arrivals));
  PoisonBody poison{};
  poison.group = group({0, 1}).id;
  peer_.send(0, FerryKind::propose, poison, "the end of the test");
  EXPECT_TRUE(soon([&] { return group({0, 1}).poison.is_set(); }));
  rank.join();
  EXPECT_THAT(failure, ::testing::HasSubstr("the end of the test"));
}

TEST_F(FerryMessages, TellTheEndOfARankWithItsReasonAndItsLastCall) {
  GroupControl& all = group({0, 1});
  RankControl& rank = control_.rank(0);
  rank.records[0].group = control_.offset_of(&all);
  rank.records[0].sequence = 41;
  rank.records[0].issued_ns = now_ns() - 5'000'000'000;
  rank.records[0].state.store(CollectiveState::running);
  rank.num_records.store(1);
  turn_for(milliseconds(20));
  heard_.clear();
  rank.end_reason.try_set("the reason");
  rank.end.store(RankEnd::failed);
  const auto [body, reason] = next_body<RankBody>(FerryKind::rank_state);
  EXPECT_EQ(body.end, RankEnd::failed);
  EXPECT_EQ(reason, "the reason");
  EXPECT_EQ(body.last_group, all.id);
  EXPECT_EQ(body.last_sequence, 41U);
  EXPECT_EQ(body.last_state, CollectiveState::running);
  EXPECT_NEAR(static_cast<double>(body.last_age_ns), 5e9, 2e9);
  turn_for(milliseconds(50));
  EXPECT_THAT(heard<RankBody>(FerryKind::rank_state), ::testing::IsEmpty()) << "it ends once";
}

TEST_F(FerryMessages, WriteTheStateOfARankElsewhere) {
  GroupControl& all = group({0, 1});
  RankBody body{};
  body.rank = 1;
  body.has_begun = 1;
  body.waits = 2;
  body.wait_changes = 6;
  body.blocked_at = 7;
  body.num_waits = 2;
  body.line = 12;
  body.column = 5;
  std::strcpy(body.step, "broadcast");
  std::strcpy(body.file, "there.yaml");
  WaitBody wait{};
  wait.group = all.id;
  wait.sequence = 8;
  wait.round = 3;
  wait.target = 6;
  wait.reason = 1;
  wait.me = 1;
  wait.member = 0;
  wait.record = record_of_call(8);
  WaitBody second = wait;
  second.sequence = 9;
  second.record = record_of_call(9);
  peer_.send(0, FerryKind::rank_state, body, ferry_bytes(wait) + ferry_bytes(second));
  RankControl& rank = control_.rank(1);
  ASSERT_TRUE(soon([&] { return rank.blocked_at.load() == 7; }));
  EXPECT_NE(rank.begun_ns.load(), 0);
  EXPECT_EQ(rank.waits.load(), 2U);
  EXPECT_EQ(rank.wait_changes.load(), 6U);
  EXPECT_STREQ(rank.location.step, "broadcast");
  EXPECT_STREQ(rank.location.file, "there.yaml");
  EXPECT_EQ(rank.location.line, 12);
  EXPECT_EQ(rank.location.column, 5);
  const WaitEntry& entry = rank.wait_entries[0];
  EXPECT_EQ(entry.group.load(), control_.offset_of(&all));
  EXPECT_EQ(entry.sequence.load(), 8U);
  EXPECT_EQ(entry.round.load(), 3U);
  EXPECT_EQ(entry.target.load(), 6U);
  EXPECT_EQ(entry.reason.load(), 1U);
  EXPECT_EQ(entry.me.load(), 1U);
  EXPECT_EQ(entry.member.load(), 0);
  const std::uint64_t record = entry.record.load();
  EXPECT_EQ(rank.records[record].group, control_.offset_of(&all));
  EXPECT_EQ(rank.records[record].sequence, 8U) << "the call is recorded here, because it has not arrived";
  EXPECT_EQ(rank.wait_entries[1].sequence.load(), 9U);
  EXPECT_EQ(rank.wait_entries[1].group.load(), control_.offset_of(&all));
  EXPECT_EQ(rank.end.load(), RankEnd::none);

  // One wait is over, and the other is the first one now. Its call stays recorded once.
  body.num_waits = 1;
  body.wait_changes = 8;
  body.blocked_at = 9;
  peer_.send(0, FerryKind::rank_state, body, ferry_bytes(second));
  ASSERT_TRUE(soon([&] { return rank.blocked_at.load() == 9; }));
  EXPECT_EQ(rank.wait_entries[0].sequence.load(), 9U);
  EXPECT_EQ(rank.wait_entries[1].group.load(), 0U);
  EXPECT_EQ(rank.num_records.load(), 2U);

  body.num_waits = 0;
  body.end = RankEnd::died;
  body.last_group = all.id;
  body.last_sequence = 9;
  body.last_record = record_of_call(9);
  body.last_state = CollectiveState::running;
  peer_.send(0, FerryKind::rank_state, body, "the reason");
  ASSERT_TRUE(soon([&] { return rank.end.load() != RankEnd::none; }));
  EXPECT_EQ(rank.end.load(), RankEnd::died);
  EXPECT_EQ(rank.end_reason.read(), "the reason");
  EXPECT_EQ(rank.wait_entries[0].group.load(), 0U);
  EXPECT_EQ(rank.records[1].state.load(), CollectiveState::running);
  EXPECT_EQ(control_.rank(0).end.load(), RankEnd::none);
}

TEST_F(FerryMessages, TellAndWriteTheEndsOfRounds) {
  GroupControl& all = group({0, 1});
  const std::uint64_t number = 10;  // more than are kept
  all.rounds_of(0).issued[number % MemberRounds::num_kept].store(77);
  open_control_plane(control_, 0)->ended_round(all, 0, number);
  const RoundBody told = next_body<RoundBody>(FerryKind::end_of_round).first;
  EXPECT_EQ(told.group, all.id);
  EXPECT_EQ(told.round, number);
  EXPECT_EQ(told.issued, 77U);
  EXPECT_EQ(told.member, 0);

  RoundBody body{};
  body.group = all.id;
  body.round = 12;
  body.issued = 5;
  body.member = 1;
  peer_.send(0, FerryKind::end_of_round, body);
  ASSERT_TRUE(soon([&] { return all.rounds_of(1).ended.load() == 12; }));
  EXPECT_EQ(all.rounds_of(1).issued[12 % MemberRounds::num_kept].load(), 5U);
  EXPECT_TRUE(all.rounds_of(1).has_skipped(12, 5));
  EXPECT_FALSE(all.rounds_of(1).has_skipped(12, 4));
}

TEST_F(FerryMessages, TellAndWriteTheTextsOfCalls) {
  GroupControl& all = group({0, 1});
  std::strcpy(control_.rank(0).content_text, "gradients of a");
  open_control_plane(control_, 0)->published_text(all, 0, 6);
  const auto [told, text] = next_body<TextBody>(FerryKind::content_text);
  EXPECT_EQ(told.group, all.id);
  EXPECT_EQ(told.sequence, 6U);
  EXPECT_EQ(told.rank, 0);
  EXPECT_EQ(text, "gradients of a");

  TextBody body{};
  body.group = all.id;
  body.sequence = 7;
  body.rank = 1;
  peer_.send(0, FerryKind::content_text, body, std::string(5000, 'x'));
  RankControl& rank = control_.rank(1);
  ASSERT_TRUE(soon([&] { return rank.content_text_of.load() == 8; }));
  EXPECT_EQ(rank.content_text_group, control_.offset_of(&all));
  EXPECT_EQ(std::string(rank.content_text), std::string(sizeof rank.content_text - 1, 'x')) << "cut to its room";
}

// The host of the group's first member decides, which is the other one here.
TEST_F(FerryMessages, AskTheHostOfTheFirstMemberToPoisonAGroup) {
  GroupControl &first = group({1, 0}), &second = group({1, 0}, 7);
  const auto plane = open_control_plane(control_, 0);
  plane->propose_poison(first, "a cycle", Cause::own, true);
  plane->propose_poison(second, "a dead rank", Cause::peer_ended, false);
  const auto [body, text] = next_body<PoisonBody>(FerryKind::propose);
  EXPECT_EQ(body.group, first.id);
  EXPECT_EQ(body.by_end, 0U);
  EXPECT_EQ(body.more_follow, 1U);
  EXPECT_EQ(text, "a cycle");
  const auto [last, last_text] = next_body<PoisonBody>(FerryKind::propose);
  EXPECT_EQ(last.group, second.id);
  EXPECT_EQ(last.by_end, 1U);
  EXPECT_EQ(last.more_follow, 0U);
  EXPECT_EQ(last_text, "a dead rank");
  EXPECT_FALSE(first.poison.is_set());

  PoisonBody decision{};
  decision.group = first.id;
  decision.by_end = 1;
  peer_.send(0, FerryKind::poison, decision, "the decision");
  ASSERT_TRUE(soon([&] { return first.poison.is_set(); }));
  EXPECT_EQ(first.poison.read(), "the decision");
  EXPECT_EQ(first.poisoned_by_end.load(), 1U);
  EXPECT_FALSE(second.poison.is_set());
}

TEST_F(FerryMessages, DescribeAGroupBeforeItIsNamed) {
  open_control_plane(control_, 0)->ended_round(group({1, 0}, 7), 1, 1);
  open_control_plane(control_, 0)->ended_round(group({1, 0}, 7), 1, 2);
  const auto [body, members] = next_body<GroupBody>(FerryKind::group);
  EXPECT_EQ(body.channel, 7U);
  EXPECT_EQ(body.id, group({1, 0}, 7).id);
  ASSERT_EQ(body.size, 2);
  ASSERT_EQ(members.size(), 2 * sizeof(std::int32_t));
  std::int32_t numbers[2];
  std::memcpy(numbers, members.data(), members.size());
  EXPECT_THAT(numbers, ::testing::ElementsAre(1, 0));
  turn_for(milliseconds(5));
  EXPECT_THAT(heard<GroupBody>(FerryKind::group), ::testing::IsEmpty()) << "once";
}

struct OfAGroup {
  const char* name;
  FerryKind kind;
  std::size_t bytes;  // of the body, which begins with the id of the group
};
void PrintTo(const OfAGroup& message, std::ostream* out) { *out << message.name; }

class MessagesOfAnUndescribedGroup : public OneFerry, public ::testing::WithParamInterface<OfAGroup> {};

TEST_P(MessagesOfAnUndescribedGroup, EndTheCase) {
  const std::uint64_t id = group({0, 1}).id + 1;
  std::string body(GetParam().bytes, '\0');
  std::memcpy(body.data(), &id, sizeof id);
  peer_.send_bytes(0, GetParam().kind, body);
  ASSERT_TRUE(soon([&] { return control_.abort.is_set(); }));
  EXPECT_EQ(control_.abort.read(), "host 1 names a process group that it has not described");
}

INSTANTIATE_TEST_SUITE_P(, MessagesOfAnUndescribedGroup,
                         ::testing::Values(OfAGroup{"Arrival", FerryKind::arrival, sizeof(ArrivalBody)},
                                           OfAGroup{"StagedPiece", FerryKind::staged_piece, sizeof(PieceBody)},
                                           OfAGroup{"EndOfRound", FerryKind::end_of_round, sizeof(RoundBody)},
                                           OfAGroup{"ContentText", FerryKind::content_text, sizeof(TextBody)},
                                           OfAGroup{"Propose", FerryKind::propose, sizeof(PoisonBody)},
                                           OfAGroup{"Poison", FerryKind::poison, sizeof(PoisonBody)}),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_F(FerryMessages, AMessageThatIsTooShortEndsTheCase) {
  peer_.send_bytes(0, FerryKind::poison, "short");
  ASSERT_TRUE(soon([&] { return control_.abort.is_set(); }));
  EXPECT_EQ(control_.abort.read(), "host 1 sent a message that is too short");
}

struct Unreadable {
  const char* name;
  std::string bytes;
  const char* text;
};
void PrintTo(const Unreadable& message, std::ostream* out) { *out << message.name; }

std::string message_of_another_hash() {
  FerryHead head;
  head.case_number = 1;
  head.number = 1;
  head.hash = 1;
  return ferry_bytes(head, "changed");
}

class DataOfAnUnreadableMessage : public OneFerry, public ::testing::WithParamInterface<Unreadable> {};

TEST_P(DataOfAnUnreadableMessage, IsRefusedSoThatItsBufferIsFree) {
  const std::string data(SocketLink::eager_bytes + 1, 'x');
  const Transfer sent = theirs_.send_with_data(0, Channel::ranks, GetParam().bytes,
                                               reinterpret_cast<const std::byte*>(data.data()), data.size());
  ASSERT_TRUE(soon([&] { return control_.abort.is_set(); }));
  EXPECT_THAT(control_.abort.read(), ::testing::HasSubstr(GetParam().text));
  EXPECT_TRUE(soon([&] { return theirs_.is_done(sent); }));
}

INSTANTIATE_TEST_SUITE_P(, DataOfAnUnreadableMessage,
                         ::testing::Values(Unreadable{"Short", "short", "a message has only 5 bytes"},
                                           Unreadable{"Changed", message_of_another_hash(),
                                                      "message 1 was cut or changed on the way"}),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_F(FerryMessages, AnAbortGoesToTheOtherHostsOnce) {
  announce_abort(*world_.host, "out of time");
  EXPECT_EQ(next(FerryKind::abort), "out of time");
  turn_for(milliseconds(5));
  for (const Heard& each : heard_) EXPECT_NE(each.kind, FerryKind::abort);
}

TEST_F(FerryMessages, AnAbortThatCameFromElsewhereIsNotSentBack) {
  peer_.send_bytes(0, FerryKind::abort, "out of time there");
  ASSERT_TRUE(soon([&] { return control_.abort.is_set(); }));
  EXPECT_EQ(control_.abort.read(), "out of time there");
  turn_for(milliseconds(5));
  for (const Heard& each : heard_) EXPECT_NE(each.kind, FerryKind::abort);
}

TEST_F(FerryMessages, TheEndGoesToTheOtherHostsOnce) {
  const auto num_ends = [&] {
    return std::count_if(heard_.begin(), heard_.end(), [](const Heard& each) { return each.kind == FerryKind::end; });
  };
  turn_for(milliseconds(20));
  EXPECT_EQ(num_ends(), 0) << "the ranks of this host go on";
  ferry_.end();
  EXPECT_TRUE(soon([&] { return num_ends() > 0; }));
  turn_for(milliseconds(20));
  EXPECT_EQ(num_ends(), 1);
}

TEST_F(FerryMessages, HeartbeatsComeAtIntervals) {
  const std::int64_t begin = now_ns();
  turn_for(milliseconds(400));
  const auto most = static_cast<std::size_t>((now_ns() - begin) / 50'000'000) + 1;
  const auto is_beat = [](const Heard& each) { return each.kind == FerryKind::heartbeat; };
  const auto num = static_cast<std::size_t>(std::count_if(heard_.begin(), heard_.end(), is_beat));
  EXPECT_GE(num, 2U);
  EXPECT_LE(num, most);
}

}  // namespace
}  // namespace lockstep::comm
