// Streams of sim: the host and the worker share their launches.
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/device/activity.hpp"
#include "engine/device/order.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::HasSubstr;

TEST(Sim, ReturnsBeforeALaunchHasRun) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  std::atomic<bool> ran{false};
  delay(compute, 200.0);
  launch(compute, "late", {}, [&](const Pointers&) { ran = true; });
  const Event event = compute.record();
  EXPECT_FALSE(ran);
  event.synchronize();
  EXPECT_TRUE(ran);
}

TEST(Sim, RefusesDelaysBelowZeroAndAboveAnHour) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  for (const double milliseconds : {-1e-9, 3.7e6, std::nan("")}) {
    EXPECT_THAT(message_of([&] { delay(compute, milliseconds); }), HasSubstr("give 0 to 3600000 (one hour)"))
        << milliseconds;
  }
  EXPECT_NO_THROW(delay(compute, 0.0));
}

TEST(Sim, RunsStreamsConcurrently) {
  OneRank rank;
  const double spent = milliseconds_of([] {
    for (int role = 0; role < 4; ++role) delay(stream(sim, static_cast<Role>(role)), 40.0);
    synchronize_all();
  });
  EXPECT_GE(spent, 39.0);
  EXPECT_LT(spent, 120.0);
}

TEST(Sim, ReportsWorkerErrorsOnTheHost) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  const Event before = compute.record();
  bool later_ran = false;
  delay(compute, 20.0);  // the launches below are issued before the first of them runs
  launch(compute, "fails", {}, [&](const Pointers&) { throw Error("the first failure"); });
  launch(compute, "fails too", {}, [&](const Pointers&) { throw Error("the second failure"); });
  launch(compute, "after", {}, [&](const Pointers&) { later_ran = true; });
  const Event after = compute.record();
  EXPECT_THAT(message_of([&] { compute.synchronize(); }), HasSubstr("the first failure"));
  EXPECT_THAT(message_of([&] { launch(compute, "more", {}, [](const Pointers&) {}); }), HasSubstr("the first failure"));
  EXPECT_THAT(message_of([&] { after.synchronize(); }), HasSubstr("the first failure"));
  EXPECT_NO_THROW(before.synchronize());
  EXPECT_FALSE(later_ran);
}

// The host runs the launches of an idle stream and the launches that it waits for. A failure on the host is reported no
// earlier than a failure on the worker.
TEST(Sim, RunsLaunchesOnTheHostWhenIdleOrWaiting) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  std::thread::id ran_on;
  const auto look = [&](const Pointers&) { ran_on = std::this_thread::get_id(); };
  launch(compute, "idle", {}, look);
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  Stream& copies = stream(sim, Role::copy_in);
  delay(compute, 5.0);
  copies.wait(compute.record());
  launch(copies, "behind another stream", {}, look);  // only the host waits for it
  copies.synchronize();
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_NO_THROW(launch(compute, "fails", {}, [](const Pointers&) { throw Error("it failed"); }));
  const Event after = compute.record();
  ran_on = {};
  EXPECT_THAT(message_of([&] { launch(compute, "more", {}, look); }), HasSubstr("it failed"));
  EXPECT_THAT(message_of([&] { after.synchronize(); }), HasSubstr("it failed"));
  Stream& side = stream(sim, Role::all_gather);
  side.wait(after);
  EXPECT_THAT(message_of([&] { side.synchronize(); }), HasSubstr("it failed"));
  EXPECT_EQ(ran_on, std::thread::id());
  clear_failures();
  launch(compute, "again", {}, look);
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(Sim, ReadsAndWritesOfNoBytesWaitForNothing) {
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 4);
  launch(current_stream(sim), "fails", {}, [](const Pointers&) { throw Error("it failed"); });
  std::byte bytes[4] = {};
  EXPECT_NO_THROW(write_from_host(*memory, 4, bytes, 0));
  EXPECT_NO_THROW(read_to_host(bytes, *memory, 4, 0));
  EXPECT_THAT(message_of([&] { write_from_host(*memory, 0, bytes, 4); }), HasSubstr("it failed"));
  EXPECT_THAT(message_of([&] { read_to_host(bytes, *memory, 0, 4); }), HasSubstr("it failed"));
  clear_failures();
}

// Otherwise the rank would seem to wait for a peer until the woken thread runs. 200 times, because it may run at once.
TEST(Sim, CountsTheThreadThatALaunchWakes) {
  OneRank rank;
  auto& activity = rank.context.service<Activity>();
  Stream& side = stream(sim, Role::all_gather);
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> open{false};
    const auto until_open = [&open](const Pointers&) {
      while (!open) std::this_thread::yield();
    };
    launch_deferred(side, "collective", {}, until_open, [](const Pointers&) {});
    activity.remove();  // as a host that sleeps
    EXPECT_FALSE(activity.none()) << i;
    open = true;
    while (!activity.none()) std::this_thread::yield();  // until the thread of the stream sleeps
    activity.add();
  }
  side.synchronize();
}

TEST(Sim, PropagatesAFailureToWaitingStreams) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  Stream& side = stream(sim, Role::all_gather);
  delay(side, 5.0);
  launch(side, "fails", {}, [](const Pointers&) { throw Error("gathering failed"); });
  bool ran = false;
  compute.wait(side.record());
  launch(compute, "uses", {}, [&](const Pointers&) { ran = true; });
  EXPECT_THAT(message_of([&] { compute.synchronize(); }), HasSubstr("gathering failed"));
  EXPECT_FALSE(ran);
  EXPECT_THAT(message_of([&] { current_stream(cpu).wait(side.record()); }), HasSubstr("gathering failed"));
}

TEST(Sim, EndsTheRankWithoutDrainingQueues) {
  std::atomic<int> ran{0};
  const double spent = milliseconds_of([&] {
    OneRank rank;
    delay(current_stream(sim), 20.0);
    for (int i = 0; i < 100; ++i) {
      launch(current_stream(sim), "sleep", {}, [&](const Pointers&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++ran;
      });
    }
    stream(sim, Role::all_gather).wait(current_stream(sim).record());
    launch(stream(sim, Role::all_gather), "never", {}, [&](const Pointers&) { ran += 1000; });
  });
  EXPECT_LT(spent, 1000.0);
  EXPECT_LT(ran, 100);
}

TEST(Sim, CopiesToAndFromCpu) {
  OneRank rank;
  const MemoryPtr host = allocate(cpu, 8), device = allocate(sim, 8), back = allocate_pinned(sim, 8);
  const double value = 2.5;
  write_from_host(*host, 0, &value, 8);
  Stream& copy = current_stream(sim);
  copy_bytes(copy, full_access(device, Mode::write), full_access(host, Mode::read));
  copy_bytes(copy, full_access(back, Mode::write), full_access(device, Mode::read));
  copy.record().synchronize();
  double seen = 0;
  read_to_host(&seen, *back, 0, 8);
  EXPECT_EQ(seen, 2.5);
  EXPECT_TRUE(order_violations().empty()) << order_violations()[0].message;
}

TEST(Sim, CopiesAsynchronouslyOnlyWithPinnedMemory) {
  OneRank rank;
  const MemoryPtr pageable = allocate(cpu, 8), pinned = allocate_pinned(sim, 8), device = allocate(sim, 8);
  Stream& copy = stream(sim, Role::copy_in);
  copy.wait(current_stream(sim).record());
  std::atomic<bool> ran{false};
  delay(copy, 200.0);
  launch(copy, "late", {}, [&](const Pointers&) { ran = true; });
  copy_bytes(copy, full_access(device, Mode::write), full_access(pinned, Mode::read));
  EXPECT_FALSE(ran);
  copy_bytes(copy, full_access(device, Mode::write), full_access(pageable, Mode::read));
  EXPECT_TRUE(ran);
  ran = false;
  delay(copy, 200.0);
  launch(copy, "late", {}, [&](const Pointers&) { ran = true; });
  copy_bytes(copy, full_access(pinned, Mode::write), full_access(device, Mode::read));
  EXPECT_FALSE(ran);
  copy_bytes(copy, full_access(pageable, Mode::write), full_access(device, Mode::read));
  EXPECT_TRUE(ran);
}

TEST(Sim, ReturnsFromNoWaitForALaunchThatNeverRuns) {
  std::atomic<bool> begun = false, agreed = false;
  std::string message;
  std::thread other;
  {
    const OneRank rank;
    Stream& side = stream(sim, Role::all_gather);
    launch_deferred(
        side, "collective", {},
        [&](const Pointers&) {
          begun = true;
          while (!agreed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        [](const Pointers&) {});
    launch(side, "behind it", {}, [](const Pointers&) {});
    while (!begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // on the stream's own thread
    other = std::thread([&, event = side.record()] {
      message = message_of([&] { event.synchronize(); });
      agreed = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the other thread begins to wait
  }
  other.join();
  EXPECT_THAT(message, HasSubstr("/all_gather ended before it ran the awaited launch"));
}

}  // namespace
}  // namespace lockstep::device
