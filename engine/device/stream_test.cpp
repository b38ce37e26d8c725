#include "engine/device/stream.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/order.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Deferred, FinishesOnDemandOnCpu) {
  OneRank rank;
  Stream& side = stream(cpu, Role::all_reduce);
  Stream& compute = current_stream(cpu);
  std::string story;
  const auto defer = [&](const char* start, const char* finish) {
    launch_deferred(
        side, "collective", {}, [&story, start](const Pointers&) { story += start; },
        [&story, finish](const Pointers&) { story += finish; });
  };
  defer("a", "A");
  EXPECT_EQ(story, "a");
  launch(compute, "elsewhere", {}, [&](const Pointers&) { story += "-"; });
  EXPECT_EQ(story, "a-");
  const Event after_a = side.record();
  compute.wait(after_a);
  EXPECT_EQ(story, "a-A");

  defer("b", "B");
  const Event after_b = side.record();
  EXPECT_EQ(story, "a-Ab");
  after_b.synchronize();
  EXPECT_EQ(story, "a-AbB");

  defer("c", "C");
  after_b.synchronize();  // recorded before c, which stays unfinished
  EXPECT_EQ(story, "a-AbBc");
  side.record().synchronize();
  EXPECT_EQ(story, "a-AbBcC");

  defer("d", "D");
  side.synchronize();
  EXPECT_EQ(story, "a-AbBcCdD");
}

TEST(Deferred, FinishesForAWaitOnSim) {
  OneRank rank;
  std::atomic<bool> finished{false};
  Stream& side = stream(cpu, Role::all_reduce);
  launch_deferred(
      side, "collective", {}, [](const Pointers&) {}, [&](const Pointers&) { finished = true; });
  current_stream(sim).wait(side.record());
  EXPECT_TRUE(finished);
}

TEST(Deferred, ReportsAFailureOnceAtTheFlush) {
  OneRank rank;
  Stream& side = stream(cpu, Role::all_reduce);
  launch_deferred(
      side, "collective", {}, [](const Pointers&) {}, [](const Pointers&) { throw CollectiveError("peer died"); });
  EXPECT_THROW(side.synchronize(), CollectiveError);
  EXPECT_NO_THROW(side.synchronize());
}

TEST(Deferred, IsAbandonedAtTheEndOfTheRank) {
  bool finished = false;
  {
    OneRank rank;
    launch_deferred(
        stream(cpu, Role::all_reduce), "collective", {}, [](const Pointers&) {},
        [&](const Pointers&) { finished = true; });
  }
  EXPECT_FALSE(finished);
}

TEST(Streams, AreRefusedBeyondSixteenEachTime) {
  OneRank rank;
  for (int index = 0; index < 16; ++index) EXPECT_EQ(current_stream({Kind::sim, index}).device().index, index);
  for (int time = 0; time < 2; ++time) {
    try {
      current_stream({Kind::sim, 16});
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("stream sim:16/compute: a rank has at most 16 streams"));
    }
  }
  EXPECT_THROW(stream({Kind::sim, 0}, Role::all_gather), Error);
  EXPECT_EQ(current_stream({Kind::sim, 15}).name(), "sim:15/compute");
}

TEST(Launch, RejectsMixedDevices) {
  OneRank rank;
  const MemoryPtr a = allocate(cpu, 8), b = allocate(sim, 8), c = allocate({Kind::sim, 1}, 8);
  const auto add = [](const Pointers&) {};
  EXPECT_THAT(message_of([&] {
                launch(current_stream(cpu), "add", {full_access(a, Mode::read), full_access(b, Mode::write)}, add);
              }),
              AllOf(HasSubstr("`add`"), HasSubstr("sim:0"), HasSubstr("cpu")));
  EXPECT_THAT(message_of([&] {
                launch(current_stream(sim), "add", {full_access(a, Mode::read), full_access(b, Mode::write)}, add);
              }),
              HasSubstr("move it to sim:0"));
  EXPECT_THAT(message_of([&] {
                launch(current_stream(sim), "add", {full_access(c, Mode::read), full_access(b, Mode::write)}, add);
              }),
              HasSubstr("sim:1"));
}

TEST(Launch, RejectsRangesThatEndOrBeginBeyondTheBlock) {
  OneRank rank;
  const MemoryPtr block = allocate(cpu, 64);
  constexpr std::size_t wraps = SIZE_MAX - 7;  // 8 bytes from there on end at 0
  for (const Access& access : {Access{block.get(), 0, 65, Mode::read}, Access{block.get(), 64, 1, Mode::write},
                               Access{block.get(), 72, 8, Mode::read}, Access{block.get(), wraps, 8, Mode::update}})
    EXPECT_THAT(message_of([&] { launch(current_stream(cpu), "add", {access}, [](const Pointers&) {}); }),
                HasSubstr("are outside the block of 64 bytes"));
  EXPECT_NO_THROW(launch(current_stream(cpu), "add", {Access{block.get(), 60, 4, Mode::read}}, [](const Pointers&) {}));
}

TEST(Launch, KeepsThreadRanksSeparate) {
  const auto run_rank = [](int id) {
    RankContext context(id, 2);
    RankScope scope(context);
    const Device own = device_from_name("sim");
    const MemoryPtr memory = allocate(own, sizeof(int));
    write_from_host(*memory, 0, &id, sizeof id);
    for (int i = 0; i < 300; ++i) {
      launch(current_stream(own), "add", {full_access(memory, Mode::update)},
             [](const Pointers& p) { *p.as<int>(0) += 1; });
      const MemoryPtr scratch = allocate(own, 128);
      launch(current_stream(own), "fill", {full_access(scratch, Mode::write)},
             [](const Pointers& p) { std::memset(p.at(0), 1, 128); });
    }
    int value = 0;
    read_to_host(&value, *memory, 0, sizeof value);
    EXPECT_EQ(value, id + 300);
    EXPECT_EQ(memory_stats().num_allocations, 301);
  };
  std::thread other(run_rank, 1);
  run_rank(0);
  other.join();
}

}  // namespace
}  // namespace lockstep::device
