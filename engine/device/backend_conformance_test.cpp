// What every backend promises. A new backend is one more value of the suite.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class BackendPromises : public testing::TestWithParam<Kind> {
 protected:
  Device device() const { return {GetParam(), 0}; }
  OneRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Backends, BackendPromises, testing::Values(Kind::cpu, Kind::sim),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST_P(BackendPromises, RunLaunchesInOrder) {
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

TEST_P(BackendPromises, PassPointersInOrderOfAccesses) {
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

TEST_P(BackendPromises, HandTheExecutionOfTheStreamToBodies) {
  const MemoryPtr memory = allocate(device(), 64);
  Stream& compute = current_stream(device());
  const bool on_host = capabilities_of(device()).runs_on_host;
  EXPECT_EQ(compute.execution().space == Space::host, on_host);
  std::atomic<int> seen = 0;
  const auto look = [&seen, expected = compute.execution()](const Pointers& p) {
    if (p.execution().space == expected.space && p.execution().stream == expected.stream) ++seen;
  };
  launch(compute, "look", {full_access(memory, Mode::read)}, look);
  launch_deferred(compute, "halves", std::vector<Access>{full_access(memory, Mode::read)}, look, look);
  compute.synchronize();
  EXPECT_EQ(seen, 3);
}

TEST_P(BackendPromises, RejectRangesOutsideTheBlock) {
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

TEST_P(BackendPromises, UseComputeOutsideScopes) {
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

TEST_P(BackendPromises, CompleteEmptyAndEarlyEvents) {
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

TEST_P(BackendPromises, AreOrderedByEvents) {
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

TEST_P(BackendPromises, CopyBytesBetweenBlocks) {
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

TEST_P(BackendPromises, StayBusyDuringADelay) {
  Stream& side = stream(device(), Role::copy_in);
  const double spent = milliseconds_of([&] {
    delay(side, 20.0);
    side.synchronize();
  });
  EXPECT_GE(spent, 19.0);
}

TEST_P(BackendPromises, RunDeferredHalvesBeforeTheNextLaunch) {
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

// ---- memory
TEST_P(BackendPromises, GiveAlignedMemoryThatStepsUseAgain) {
  for (int step = 0; step < 4; ++step) {
    const std::int64_t misses = memory_stats().num_pool_misses;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20}) {
      const MemoryPtr memory = allocate(device(), bytes);
      launch(current_stream(device()), "look", {full_access(memory, Mode::write)},
             [](const Pointers& p) { EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.at(0)) % 64, 0U); });
    }
    EXPECT_TRUE(step == 0 || memory_stats().num_pool_misses == misses) << "in step " << step;
  }
  EXPECT_EQ(memory_stats().current_total, 0);
}

TEST_P(BackendPromises, RefuseMoreMemoryThanThereIs) {
  EXPECT_THAT(message_of([&] { allocate(device(), std::size_t{1} << 50); }), HasSubstr("out of memory on "));
  EXPECT_EQ(allocate(device(), 8)->bytes(), 8U);
}

// ---- capabilities
TEST_P(BackendPromises, RunInlineExactlyWhereTheySaySo) {
  Stream& compute = current_stream(device());
  EXPECT_EQ(compute.runs_inline(), capabilities_of(device()).runs_inline);
  std::atomic<bool> released = false;
  std::atomic<int> num_run = 0;
  if (!compute.runs_inline())
    launch_deferred(
        compute, "blocks", {},
        [&](const Pointers&) {
          while (!released) std::this_thread::sleep_for(std::chrono::microseconds(100));
        },
        [](const Pointers&) {});
  launch(compute, "counts", {}, [&](const Pointers&) { ++num_run; });
  EXPECT_EQ(num_run, compute.runs_inline() ? 1 : 0);
  released = true;
  compute.synchronize();
  EXPECT_EQ(num_run, 1);
}

// ---- failures
TEST_P(BackendPromises, ReportAFailureAndRunAgainAfterItIsCleared) {
  Stream& compute = current_stream(device());
  bool ran = false;
  EXPECT_THAT(message_of([&] {
                launch(compute, "fails", {}, [](const Pointers&) { throw Error("on purpose"); });
                compute.synchronize();
              }),
              HasSubstr("on purpose"));
  clear_failures();
  launch(compute, "runs", {}, [&](const Pointers&) { ran = true; });
  compute.synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(BackendPromises, ReportAFailureInASecondHalf) {
  Stream& side = stream(device(), Role::all_reduce);
  launch_deferred(
      side, "collective", {}, [](const Pointers&) {}, [](const Pointers&) { throw Error("in the second half"); });
  EXPECT_THAT(message_of([&] { side.synchronize(); }), HasSubstr("in the second half"));
}

// ---- copies
TEST_P(BackendPromises, CopyToAndFromTheHost) {
  const MemoryPtr host = allocate(cpu, 16), there = allocate(device(), 16), back = allocate(cpu, 16);
  const std::string text = "sixteen letters!";
  write_from_host(*host, 0, text.data(), text.size());
  Stream& compute = current_stream(device());
  copy_bytes(compute, full_access(there, Mode::write), full_access(host, Mode::read));
  copy_bytes(compute, full_access(back, Mode::write), full_access(there, Mode::read));
  current_stream(cpu).wait(compute.record());
  std::string read(text.size(), ' ');
  read_to_host(read.data(), *back, 0, read.size());
  EXPECT_EQ(read, text);
  EXPECT_TRUE(order_violations().empty());
}

// ---- the end of a rank
// The second launch waits behind the first: its second half inline, the whole of it on a worker.
TEST(BackendEnd, DropsWhatHasNotRun) {
  for (const Kind kind : {Kind::cpu, Kind::sim}) {
    std::atomic<int> num_started = 0, num_dropped_that_ran = 0;
    {
      OneRank rank;
      Stream& side = stream({kind, 0}, Role::all_gather);
      launch_deferred(
          side, "runs", {},
          [&](const Pointers&) {
            ++num_started;
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
          },
          [](const Pointers&) {});
      launch_deferred(
          side, "is dropped", {}, [](const Pointers&) {}, [&](const Pointers&) { ++num_dropped_that_ran; });
      while (num_started == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_EQ(num_dropped_that_ran, 0) << name_of(kind);
  }
}

}  // namespace
}  // namespace lockstep::device
