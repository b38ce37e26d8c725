// The data of collectives by way of a ferry: what is sent and stored, and what becomes of it when the case ends.
#include <cstring>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/crossing_plan.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/test_ferry.hpp"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using FerryData = testing_ferry::OneFerry;

// The last host of the group adds so few elements. The test is that host.
TEST_F(FerryData, ACollectiveIsDoneInTheRecorderOfEveryMember) {
  std::vector<float> sum;
  std::thread rank([&] {
    const testing_ranks::Body body = [&](int) {
      const Tensor x = testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32);
      all_reduce(world_group(), x, ReduceOp::sum);
      sum = testing_ranks::values_of<float>(x);
    };
    testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  auto [arrival, nothing] = next_body<ArrivalBody>(FerryKind::arrival);
  EXPECT_EQ(arrival.sequence, 0U);
  EXPECT_EQ(arrival.member, 0);
  EXPECT_EQ(arrival.fingerprint.count, 3);
  EXPECT_LT(arrival.age_ns, 10'000'000'000);
  EXPECT_GE(arrival.age_ns, 0);
  arrival.member = 1;
  arrival.age_ns = 7'000'000'000;
  peer_.send(0, FerryKind::arrival, arrival);
  // Another call of that rank, which has the same number in its group and stays unfinished.
  ArrivalBody other = arrival;
  other.group = group({1, 0}).id;
  other.member = 0;
  peer_.send(0, FerryKind::arrival, other);
  // The next call of that rank in this group.
  ArrivalBody later = arrival;
  later.sequence = 1;
  Record next_call{};
  next_call.sequence = 1;
  std::memcpy(later.record.data(), static_cast<const void*>(&next_call), sizeof next_call);
  peer_.send(0, FerryKind::arrival, later);
  auto [data, summand] = next_body<DataBody>(FerryKind::data);
  EXPECT_EQ(data.member, 0);
  EXPECT_EQ(data.begin, 0);
  EXPECT_EQ(data.n, 3);
  std::vector<float> values(3);
  ASSERT_EQ(summand.size(), 3 * sizeof(float));
  std::memcpy(values.data(), summand.data(), summand.size());
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3));
  const Record& record = control_.rank(1).records[0];
  EXPECT_EQ(record.state.load(), CollectiveState::waiting);
  EXPECT_NEAR(static_cast<double>(now_ns() - record.issued_ns), 7e9, 3e9);
  const float total[] = {10, 20, 30};
  data.member = -1;
  peer_.send(0, FerryKind::data, data, {reinterpret_cast<const char*>(total), sizeof total});
  ASSERT_TRUE(soon([&] { return record.state.load() == CollectiveState::done; }));
  EXPECT_EQ(control_.rank(1).num_records.load(), 3U);
  EXPECT_EQ(control_.rank(1).records[1].state.load(), CollectiveState::waiting) << "the call in the other group";
  EXPECT_EQ(control_.rank(1).records[2].state.load(), CollectiveState::waiting) << "the next call";
  rank.join();
  EXPECT_THAT(sum, ::testing::ElementsAre(10, 20, 30));
}

// The test is the host of all ranks but the first. In memory, the number of rounds of the first rank follows the last
// member of a group of this size, without a gap.
TEST(FerryDataOfManyRanks, ACollectiveIsDoneInTheRecorderOfEveryMember) {
  constexpr int size = 16 - static_cast<int>(sizeof(GroupControl) / sizeof(std::int32_t) % 16);
  static_assert(size > 1);
  testing_ferry::Sockets sockets;
  SocketLink mine(0, testing_ferry::sockets_of(0, sockets.ends[0]));
  SocketLink theirs(1, testing_ferry::sockets_of(1, sockets.ends[1]));
  testing_ranks::World world(size, testing_ranks::Kind::threads);
  WorldControl& control = control_of(*world.host);
  std::vector<int> members, host_of(size, 1);
  for (int member = 0; member < size; ++member) members.push_back(member);
  host_of[0] = 0;
  Ferry ferry(mine, *world.host, {0, 2, host_of}, 1);
  FerryPost peer(theirs, 1);
  find_or_insert_group(control, members, 0).rounds_of(0).ended.store(2'000'000'000);
  std::thread rank([&] {
    const testing_ranks::Body body = [](int) {
      all_reduce(world_group(), testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32), ReduceOp::sum);
    };
    EXPECT_EQ(testing_ranks::run_rank(world, 0, body, 60.0), "");
  });
  // The next message of this kind.
  const auto next = [&](FerryKind kind) {
    const auto end = testing_ferry::Clock::now() + std::chrono::seconds(30);
    for (FerryPost::Received received; testing_ferry::Clock::now() < end;) {
      ferry.progress();
      theirs.progress();
      if (peer.receive(received) && received.kind == kind) return std::string(received.body);
    }
    return std::string();
  };
  const std::string arrival_bytes = next(FerryKind::arrival);
  std::string_view rest = arrival_bytes;
  ArrivalBody arrival{};
  EXPECT_TRUE(take_body(rest, arrival));
  for (arrival.member = 1; arrival.member < size; ++arrival.member) peer.send(0, FerryKind::arrival, arrival);
  const std::string data_bytes = next(FerryKind::data);
  rest = data_bytes;
  DataBody data{};
  EXPECT_TRUE(take_body(rest, data));
  const float total[] = {10, 20, 30};
  data.member = -1;
  peer.send(0, FerryKind::data, data, {reinterpret_cast<const char*>(total), sizeof total});
  const auto num_done = [&] {
    int found = 0;
    for (int member = 1; member < size; ++member)
      found += control.rank(member).records[0].state.load() == CollectiveState::done ? 1 : 0;
    return found;
  };
  for (const auto end = testing_ferry::Clock::now() + std::chrono::seconds(30);
       num_done() < size - 1 && testing_ferry::Clock::now() < end;) {
    ferry.progress();
    theirs.progress();
  }
  EXPECT_EQ(num_done(), size - 1);
  rank.join();
}

// The sum comes when the rank of this host has given up. Its record is its own.
TEST_F(FerryData, ASumThatComesTooLateLeavesTheFailedCallFailed) {
  std::string failure;
  std::thread rank([&] {
    const testing_ranks::Body body = [](int) {
      all_reduce(world_group(), testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32), ReduceOp::sum);
    };
    failure = testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  auto [arrival, nothing] = next_body<ArrivalBody>(FerryKind::arrival);
  arrival.member = 1;
  peer_.send(0, FerryKind::arrival, arrival);
  auto [data, summand] = next_body<DataBody>(FerryKind::data);
  poison_here(control_, *find_group(control_, arrival.group), "the test is over", Cause::own);
  rank.join();
  EXPECT_THAT(failure, ::testing::HasSubstr("the test is over"));
  const Record &mine = control_.rank(0).records[0], &theirs = control_.rank(1).records[0];
  EXPECT_EQ(mine.state.load(), CollectiveState::failed);
  const float total[] = {10, 20, 30};
  data.member = -1;
  peer_.send(0, FerryKind::data, data, {reinterpret_cast<const char*>(total), sizeof total});
  ASSERT_TRUE(soon([&] { return theirs.state.load() == CollectiveState::done; }));
  EXPECT_EQ(mine.state.load(), CollectiveState::failed);
}

// A later call of the group has failed on the other host, and the data of this one is still on its way.
TEST_F(FerryData, APoisonWaitsForTheDataOfAnEarlierCall) {
  std::string failure;
  std::vector<float> sum;
  std::thread rank([&] {
    const testing_ranks::Body body = [&](int) {
      const Tensor x = testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32);
      all_reduce(world_group(), x, ReduceOp::sum);
      sum = testing_ranks::values_of<float>(x);
    };
    failure = testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  auto [arrival, nothing] = next_body<ArrivalBody>(FerryKind::arrival);
  arrival.member = 1;
  peer_.send(0, FerryKind::arrival, arrival);
  auto [data, summand] = next_body<DataBody>(FerryKind::data);
  PoisonBody poison{};
  poison.group = arrival.group;
  peer_.send(0, FerryKind::poison, poison, "a later call has failed");
  turn_for(milliseconds(20));
  const float total[] = {10, 20, 30};
  data.member = -1;
  peer_.send(0, FerryKind::data, data, {reinterpret_cast<const char*>(total), sizeof total});
  EXPECT_TRUE(soon([&] { return group({0, 1}).poison.is_set(); }));
  rank.join();
  EXPECT_EQ(failure, "");
  EXPECT_THAT(sum, ::testing::ElementsAre(10, 20, 30));
}

// Here the ferry is that of the host that adds.
using FerryDataOfSecondHost = testing_ferry::FerryOfSecondHost;
TEST_F(FerryDataOfSecondHost, ASumGoesToTheOtherHost) {
  std::vector<float> sum;
  std::thread rank([&] {
    const testing_ranks::Body body = [&](int) {
      const Tensor x = testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32);
      all_reduce(world_group(), x, ReduceOp::mean);
      sum = testing_ranks::values_of<float>(x);
    };
    testing_ranks::run_rank(world_, 1, body, 60.0);
  });
  auto [arrival, nothing] = next_body<ArrivalBody>(FerryKind::arrival);
  EXPECT_EQ(arrival.member, 1);
  arrival.member = 0;
  peer_.send(1, FerryKind::arrival, arrival);
  DataBody body{};
  body.group = arrival.group;
  body.sequence = arrival.sequence;
  body.n = 3;
  body.member = 0;
  const float summand[] = {11, 22, 33};
  peer_.send(1, FerryKind::data, body, {reinterpret_cast<const char*>(summand), sizeof summand});
  const auto [data, bytes] = next_body<DataBody>(FerryKind::data);
  EXPECT_EQ(data.member, -1) << "a sum";
  EXPECT_EQ(data.begin, 0);
  EXPECT_EQ(data.n, 3);
  std::vector<float> values(3);
  ASSERT_EQ(bytes.size(), 3 * sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  EXPECT_THAT(values, ::testing::ElementsAre(6, 12, 18));
  rank.join();
  EXPECT_EQ(sum, values);
  EXPECT_EQ(control_.rank(0).records[0].state.load(), CollectiveState::done);
}

struct Unfit {
  const char* name;
  DataBody data;
  std::size_t bytes;
  const char* text;
};
void PrintTo(const Unfit& unfit, std::ostream* out) { *out << unfit.name; }

// Data of an all-reduce of 3 float32, which the other host adds.
class DataThatDoesNotFit : public testing_ferry::OneFerry, public ::testing::WithParamInterface<Unfit> {};

TEST_P(DataThatDoesNotFit, EndsTheCaseWithTheReason) {
  std::string failure;
  std::thread rank([&] {
    const testing_ranks::Body body = [&](int) {
      all_reduce(world_group(), testing_ranks::tensor_of(std::vector<float>{1, 2, 3}, DType::float32), ReduceOp::sum);
    };
    failure = testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  auto [arrival, nothing] = next_body<ArrivalBody>(FerryKind::arrival);
  arrival.member = 1;
  peer_.send(0, FerryKind::arrival, arrival);
  DataBody body = GetParam().data;
  body.group = arrival.group;
  body.sequence = arrival.sequence;
  peer_.send(0, FerryKind::data, body, std::string(GetParam().bytes, '\0'));
  EXPECT_TRUE(soon([&] { return control_.abort.is_set(); }));
  rank.join();
  EXPECT_THAT(failure, ::testing::HasSubstr("data from host 1 for all_reduce #0 does not fit: "));
  EXPECT_THAT(failure, ::testing::HasSubstr(GetParam().text));
  EXPECT_EQ(ferry_.lost().size(), 1U) << "a host that cannot be trusted";
}

DataBody data_of(std::int64_t begin, std::int64_t n, std::int32_t member) {
  DataBody body{};
  body.begin = begin;
  body.n = n;
  body.member = member;
  return body;
}

INSTANTIATE_TEST_SUITE_P(
    , DataThatDoesNotFit,
    ::testing::Values(Unfit{"BeforeTheRange", data_of(-1, 3, -1), 12, "12 bytes for elements -1 to 2 of 3"},
                      Unfit{"Empty", data_of(0, 0, -1), 0, "0 bytes for elements 0 to 0 of 3"},
                      Unfit{"BeyondTheRange", data_of(1, 3, -1), 12, "12 bytes for elements 1 to 4 of 3"},
                      Unfit{"OneByteLess", data_of(0, 3, -1), 11, "11 bytes for elements 0 to 3 of 3"},
                      Unfit{"OneByteMore", data_of(0, 3, -1), 13, "13 bytes for elements 0 to 3 of 3"},
                      Unfit{"ASummand", data_of(0, 3, 1), 12, "this host does not sum these elements of member 1"}),
    [](const auto& of) { return std::string(of.param.name); });

// Six summands of an all-reduce, of which four may be in memory at once. The case ends while these are on their way.
TEST_F(FerryData, DataThatWaitsForMemoryIsRefusedAtTheEnd) {
  const std::int64_t elements = std::int64_t{12} << 17;  // 12 pieces of 512 KiB, and half of them are added here
  std::thread rank([&] {
    const testing_ranks::Body body = [&](int) {
      all_reduce(world_group(),
                 testing_ranks::tensor_of(std::vector<float>(static_cast<std::size_t>(elements), 1.0F), DType::float32),
                 ReduceOp::sum);
    };
    testing_ranks::run_rank(world_, 0, body, 60.0);
  });
  auto [arrival, nothing] = next_body<ArrivalBody>(FerryKind::arrival);
  arrival.member = 1;
  peer_.send(0, FerryKind::arrival, arrival);
  mine_.holds = true;
  const CrossingShape shape(arrival.fingerprint, {0, 1});
  const std::vector<std::byte> summand(std::size_t{512} << 10);
  std::vector<Transfer> sent;
  for (const Piece& piece : pieces_owned(shape, 0)) {
    DataBody body{};
    body.group = arrival.group;
    body.sequence = arrival.sequence;
    body.begin = piece.begin;
    body.n = piece.n;
    body.member = 1;
    sent.push_back(peer_.send_data(0, body, summand.data(), static_cast<std::size_t>(piece.n) * sizeof(float)));
  }
  ASSERT_EQ(sent.size(), 6U);
  std::size_t num_taken = 0;
  const auto take = [&] { num_taken += std::erase_if(sent, [&](Transfer each) { return theirs_.is_done(each); }); };
  EXPECT_TRUE(soon([&] { return take(), num_taken == 4; }));
  turn_for(milliseconds(20));
  take();
  EXPECT_EQ(num_taken, 4U) << "more summands are in memory than may be";
  announce_abort(*world_.host, "the test is over");
  rank.join();
  ferry_.end();
  peer_.send_bytes(0, FerryKind::end, "");
  EXPECT_TRUE(soon([&] { return take(), num_taken == 6; })) << "nobody tells the sender that its data is not wanted";
  turn_for(milliseconds(5));
  EXPECT_FALSE(ferry_.finished());
  mine_.holds = false;
  EXPECT_TRUE(soon([&] { return ferry_.finished(); }));
  EXPECT_THAT(ferry_.lost(), ::testing::IsEmpty());
}

TEST_F(FerryData, EndsAfterTheLastTransferIntoItsMemory) {
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
  EXPECT_THAT(ferry_.awaited(), ::testing::ElementsAre(1));
  mine_.holds = false;
  EXPECT_TRUE(soon([&] { return ferry_.finished(); }));
}

}  // namespace
}  // namespace lockstep::comm
