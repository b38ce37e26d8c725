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

class Streams : public testing::TestWithParam<Kind> {
 protected:
  Device device() const { return {GetParam(), 0}; }
  OneRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Devices, Streams, testing::Values(Kind::cpu, Kind::sim),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST_P(Streams, RunLaunchesInOrder) {
  const MemoryPtr memory = allocate(device(), 4 * sizeof(int));
  const int start[4] = {1, 2, 3, 4};
  write_from_host(*memory, 0, start, sizeof start);
  Stream& compute = current_stream(device());
  for (int i = 0; i < 50; ++i) {
    launch(compute, "add", {full_access(memory, Mode::update)}, [](const Pointers& p) {
      for (int k = 0; k < 4; ++k) p.as<int>(0)[k] += 1;
    });
    launch(compute, "double", {full_access(memory, Mode::update)}, [i](const Pointers& p) {
      if (i % 10 == 0) p.as<int>(0)[0] *= 2;
    });
  }
  int values[4];
  read_to_host(values, *memory, 0, sizeof values);
  int expected = 1;
  for (int i = 0; i < 50; ++i) {
    ++expected;
    if (i % 10 == 0) expected *= 2;
  }
  EXPECT_THAT(values, ElementsAre(expected, 52, 53, 54));
}

TEST_P(Streams, PassPointersInOrderOfAccesses) {
  const MemoryPtr memory = allocate(device(), 4096);
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < 12; ++i) accesses.push_back({memory.get(), i * 64, i == 5 ? 0u : 64u, Mode::write});
  launch(current_stream(device()), "many", std::span<const Access>(accesses), [](const Pointers& p) {
    ASSERT_EQ(p.size(), 12u);
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(p.at(i), i == 5 ? nullptr : p.at(0) + i * 64);
    }
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.at(0)) % 64, 0u);
  });
  synchronize_all();
}

TEST_P(Streams, RejectRangesOutsideTheBlock) {
  const MemoryPtr memory = allocate(device(), 100);
  memory->label = "fc1.weight";
  for (const auto& [offset, bytes] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 101}, {100, 1}, {200, 1}, {1, ~std::size_t{0}}}) {
    const std::string message = message_of([&] {
      launch(current_stream(device()), "far", {Access{memory.get(), offset, bytes, Mode::read}},
             [](const Pointers&) {});
    });
    EXPECT_THAT(message, HasSubstr("`far`"));
    EXPECT_THAT(message, HasSubstr("fc1.weight"));
  }
}

TEST_P(Streams, UseComputeOutsideScopes) {
  EXPECT_EQ(&current_stream(device()), &stream(device(), Role::compute));
  {
    StreamScope outer(stream(device(), Role::all_gather));
    EXPECT_EQ(current_stream(device()).role(), Role::all_gather);
    StreamScope inner(stream(device(), Role::reduce_scatter));
    EXPECT_EQ(current_stream(device()).role(), Role::reduce_scatter);
  }
  EXPECT_EQ(current_stream(device()).role(), Role::compute);
  EXPECT_EQ(current_stream(device()).name(), to_text(device()) + "/compute");
}

TEST_P(Streams, CompleteEmptyAndEarlyEvents) {
  EXPECT_TRUE(Event().done());
  Event().synchronize();
  Stream& compute = current_stream(device());
  const Event event = compute.record();
  EXPECT_TRUE(event.defined());
  event.synchronize();
  EXPECT_TRUE(event.done());
  compute.wait(event);
  compute.wait(Event());
}

TEST_P(Streams, AreOrderedByEvents) {
  Stream& compute = current_stream(device());
  Stream& side = stream(device(), Role::all_gather);
  const MemoryPtr memory = allocate(device(), sizeof(int));
  for (int i = 0; i < 20; ++i) {
    launch(compute, "produce", {full_access(memory, Mode::write)}, [i](const Pointers& p) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      *p.as<int>(0) = i;
    });
    side.wait(compute.record());
    int seen = -1;
    launch(side, "consume", {full_access(memory, Mode::read)}, [&seen](const Pointers& p) { seen = *p.as<int>(0); });
    const Event consumed = side.record();
    compute.wait(consumed);
    consumed.synchronize();
    ASSERT_EQ(seen, i);
  }
  EXPECT_TRUE(order_violations().empty()) << order_violations()[0].message;
}

TEST_P(Streams, CopyBytesBetweenBlocks) {
  const MemoryPtr from = allocate(device(), 64), to = allocate(device(), 64);
  const std::string text = "collectives";
  write_from_host(*from, 3, text.data(), text.size());
  copy_bytes(current_stream(device()), {to.get(), 10, text.size(), Mode::write},
             {from.get(), 3, text.size(), Mode::read});
  std::string back(text.size(), ' ');
  read_to_host(back.data(), *to, 10, back.size());
  EXPECT_EQ(back, text);
  EXPECT_THROW(copy_bytes(current_stream(device()), {to.get(), 0, 4, Mode::write}, {from.get(), 0, 5, Mode::read}),
               Error);
}

TEST_P(Streams, StayBusyDuringADelay) {
  Stream& side = stream(device(), Role::copy_in);
  const double spent = milliseconds_of([&] {
    delay(side, 20.0);
    side.synchronize();
  });
  EXPECT_GE(spent, 19.0);
}

TEST_P(Streams, RunDeferredHalvesBeforeTheNextLaunch) {
  std::string story;
  Stream& side = stream(device(), Role::all_reduce);
  launch_deferred(
      side, "collective", {}, [&](const Pointers&) { story += "s1 "; }, [&](const Pointers&) { story += "f1 "; });
  launch_deferred(
      side, "collective", {}, [&](const Pointers&) { story += "s2 "; }, [&](const Pointers&) { story += "f2 "; });
  launch(side, "next", {}, [&](const Pointers&) { story += "n "; });
  side.synchronize();
  EXPECT_EQ(story, "s1 f1 s2 f2 n ");
}

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
  EXPECT_TRUE(after_b.done());
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
