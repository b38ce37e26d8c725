// A poison of the group beside the opening of a slot, and beside data that moves. The end of a member during an
// exchange. The test plays the last member.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/slot.hpp"
#include "engine/comm/staging.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/comm/transport.hpp"

namespace lockstep::comm {
namespace {

constexpr const char* failure_elsewhere = "another collective has failed";

class Opening : public ::testing::Test {
 protected:
  void TearDown() override { join(); }

  // Rank 0 sums a tensor of ones. Returns when it waits for this member, whose call is as its own.
  void begin(std::size_t count) {
    mine_.assign(count, 2.0F);
    rank_ = std::thread([this, count] {
      const testing_ranks::Body body = [this, count](int) {
        const Tensor x = testing_ranks::tensor_of(std::vector<float>(count, 1.0F), DType::float32);
        try {
          all_reduce(world_group(), x, ReduceOp::sum);
        } catch (const CollectiveError& error) {
          failure_ = error.message();
        }
        theirs_ = testing_ranks::values_of<float>(x);
      };
      testing_ranks::run_rank(world_, 0, body, 60.0);
      has_ended_ = true;
    });
    while (slot_.arrived.load() == 0) std::this_thread::yield();
    MemberEntry* const entries = slot_.entries();
    entries[1].fingerprint = entries[0].fingerprint;
    entries[1].output = reinterpret_cast<std::byte*>(mine_.data());
    entries[1].input = entries[1].output;
    entries[1].arrival.store(1);
  }
  // Opens the slot, whose first chunk this member has claimed. Returns when rank 0 has moved the others.
  void open_with_a_claimed_chunk() {
    slot_.next_chunk.store(1);
    count_arrival(control_, group_, 0);
    const Chunking chunking = chunking_of(slot_.entries()[0].fingerprint, group_.size);
    const auto num_others = static_cast<std::uint32_t>(chunking.num_chunks - 1);
    EXPECT_GT(num_others, 0U);
    while (slot_.done_chunks.load() < num_others) std::this_thread::yield();
  }
  void fail_elsewhere() { poison_here(control_, group_, failure_elsewhere, Cause::own); }
  void finish() {
    slot_.stage.store(Stage::finished);
    notify(slot_.changes);
  }
  bool still_waits() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return !has_ended_;
  }
  void join() {
    if (rank_.joinable()) rank_.join();
  }

  testing_ranks::World world_{2, testing_ranks::Kind::threads};
  WorldControl& control_ = control_of(*world_.host);
  GroupControl& group_ = find_or_insert_group(control_, {0, 1}, 0);
  Slot& slot_ = group_.slot(0);
  std::thread rank_;
  std::atomic<bool> has_ended_{false};
  std::string failure_;
  std::vector<float> mine_, theirs_;
};

TEST_F(Opening, IsRefusedInAPoisonedGroup) {
  begin(4);
  fail_elsewhere();
  count_arrival(control_, group_, 0);
  EXPECT_EQ(slot_.stage.load(), Stage::refused);
  join();
  EXPECT_EQ(failure_, failure_elsewhere);
  EXPECT_EQ(theirs_, std::vector<float>(4, 1.0F));
  EXPECT_EQ(mine_, std::vector<float>(4, 2.0F));
}

// The last member may not have seen the poison, and uses the buffers of all.
TEST_F(Opening, HoldsTheMembersUntilItIsDecided) {
  begin(4);
  slot_.arrived.fetch_add(1);
  fail_elsewhere();
  EXPECT_TRUE(still_waits());
  finish();
  join();
  EXPECT_EQ(failure_, "");
}

TEST_F(Opening, OfAMovingCollectiveOutlivesAFailureOfAnotherOne) {
  begin(1'000'000);
  open_with_a_claimed_chunk();
  fail_elsewhere();
  EXPECT_TRUE(still_waits());
  finish();
  join();
  EXPECT_EQ(failure_, "");
  EXPECT_EQ(theirs_.back(), 3.0F);
  EXPECT_EQ(mine_.back(), 3.0F);
}

TEST_F(Opening, OfAMovingCollectiveEndsWithAFailureInIt) {
  begin(1'000'000);
  open_with_a_claimed_chunk();
  slot_.is_abandoned.store(1);
  fail_elsewhere();
  join();
  EXPECT_EQ(failure_, failure_elsewhere);
}

// An exchange that all members have joined completes, although the rank of one has ended.
TEST_F(Opening, OfAnExchangeOutlivesTheEndOfARank) {
  std::vector<std::string> all;
  rank_ = std::thread([&] {
    const testing_ranks::Body body = [&](int) { all = comm::exchange(world_group(), "mine"); };
    failure_ = testing_ranks::run_rank(world_, 0, body, 60.0);
    has_ended_ = true;
  });
  while (slot_.arrived.load() == 0) std::this_thread::yield();
  MemberEntry& last = slot_.entries()[1];
  last.fingerprint = slot_.entries()[0].fingerprint;
  last.arrival.store(1);
  allocate_staging(control_, last);
  std::memcpy(staged_piece(control_, last, 0), "here", 4);
  count_arrival(control_, group_, 0);
  control_.rank(1).end.store(RankEnd::ended);
  notify_all(control_);
  EXPECT_TRUE(still_waits());
  slot_.barrier_arrivals.fetch_add(1);
  notify(slot_.changes);
  join();
  EXPECT_EQ(failure_, "");
  EXPECT_THAT(all, ::testing::ElementsAre("mine", "here"));
}

}  // namespace
}  // namespace lockstep::comm
