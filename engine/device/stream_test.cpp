#include "engine/device/stream.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"

namespace lockstep::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Device cpu{Kind::cpu, 0};
constexpr Device sim{Kind::sim, 0};

struct OneRank {
  RankContext context{0, 1};
  RankScope scope{context};
};

double milliseconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Access whole(const MemoryPtr& memory, Mode mode) { return {memory.get(), 0, memory->bytes(), mode}; }

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class OnEach : public testing::TestWithParam<Kind> {
 protected:
  Device device() const { return {GetParam(), 0}; }
  OneRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Devices, OnEach, testing::Values(Kind::cpu, Kind::sim),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST_P(OnEach, LaunchesRunInOrder) {
  const MemoryPtr memory = allocate(device(), 4 * sizeof(int));
  const int start[4] = {1, 2, 3, 4};
  write_from_host(*memory, 0, start, sizeof start);
  Stream& compute = current_stream(device());
  for (int i = 0; i < 50; ++i) {
    launch(compute, "add", {whole(memory, Mode::update)}, [](const Pointers& p) {
      for (int k = 0; k < 4; ++k) p.as<int>(0)[k] += 1;
    });
    launch(compute, "double", {whole(memory, Mode::update)}, [i](const Pointers& p) {
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

TEST_P(OnEach, PointersFollowTheAccesses) {
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

TEST_P(OnEach, RangesOutsideTheBlockAreRefused) {
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

TEST_P(OnEach, CurrentStreamIsComputeUnlessScoped) {
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

TEST_P(OnEach, EmptyAndEarlyEventsAreDone) {
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

TEST_P(OnEach, EventsOrderStreams) {
  Stream& compute = current_stream(device());
  Stream& side = stream(device(), Role::all_gather);
  const MemoryPtr memory = allocate(device(), sizeof(int));
  for (int i = 0; i < 20; ++i) {
    launch(compute, "produce", {whole(memory, Mode::write)}, [i](const Pointers& p) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      *p.as<int>(0) = i;
    });
    side.wait(compute.record());
    int seen = -1;
    launch(side, "consume", {whole(memory, Mode::read)}, [&seen](const Pointers& p) { seen = *p.as<int>(0); });
    const Event consumed = side.record();
    compute.wait(consumed);
    consumed.synchronize();
    ASSERT_EQ(seen, i);
  }
  EXPECT_TRUE(order_violations().empty()) << order_violations()[0].message;
}

TEST_P(OnEach, CopiesBytesBetweenBlocks) {
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

TEST_P(OnEach, DelayKeepsTheStreamBusy) {
  Stream& side = stream(device(), Role::copy_in);
  const double spent = milliseconds_of([&] {
    delay(side, 20.0);
    side.synchronize();
  });
  EXPECT_GE(spent, 19.0);
}

TEST_P(OnEach, DeferredHalvesBothRunBeforeTheNextLaunch) {
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

TEST(Deferred, FinishesWhenNeededOnCpu) {
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
  after_b.synchronize();  // recorded before: c stays open
  EXPECT_EQ(story, "a-AbBc");
  side.record().synchronize();
  EXPECT_EQ(story, "a-AbBcC");

  defer("d", "D");
  side.synchronize();
  EXPECT_EQ(story, "a-AbBcCdD");
}

TEST(Deferred, WaitingFromSimFinishesTheCpuHalf) {
  OneRank rank;
  std::atomic<bool> finished{false};
  Stream& side = stream(cpu, Role::all_reduce);
  launch_deferred(
      side, "collective", {}, [](const Pointers&) {}, [&](const Pointers&) { finished = true; });
  current_stream(sim).wait(side.record());
  EXPECT_TRUE(finished);
}

TEST(Deferred, AFailingHalfSurfacesOnceAtTheFlush) {
  OneRank rank;
  Stream& side = stream(cpu, Role::all_reduce);
  launch_deferred(
      side, "collective", {}, [](const Pointers&) {}, [](const Pointers&) { throw CollectiveError("peer died"); });
  EXPECT_THROW(side.synchronize(), CollectiveError);
  EXPECT_NO_THROW(side.synchronize());
}

TEST(Deferred, IsAbandonedWithTheRank) {
  bool finished = false;
  {
    OneRank rank;
    launch_deferred(
        stream(cpu, Role::all_reduce), "collective", {}, [](const Pointers&) {},
        [&](const Pointers&) { finished = true; });
  }
  EXPECT_FALSE(finished);
}

TEST(Sim, LaunchesReturnAtOnce) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  delay(compute, 200.0);
  const Event event = compute.record();
  EXPECT_FALSE(event.done());
  event.synchronize();
  EXPECT_TRUE(event.done());
}

TEST(Sim, StreamsRunAtTheSameTime) {
  OneRank rank;
  const double spent = milliseconds_of([] {
    for (int role = 0; role < 4; ++role) delay(stream(sim, static_cast<Role>(role)), 40.0);
    synchronize_all();
  });
  EXPECT_GE(spent, 39.0);
  EXPECT_LT(spent, 120.0);
}

TEST(Sim, ErrorsOfTheWorkerSurfaceOnTheHost) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  const Event before = compute.record();
  bool later_ran = false;
  delay(compute, 20.0);  // what follows is issued before the first of it runs
  launch(compute, "fails", {}, [&](const Pointers&) { throw Error("the first failure"); });
  launch(compute, "fails too", {}, [&](const Pointers&) { throw Error("the second failure"); });
  launch(compute, "after", {}, [&](const Pointers&) { later_ran = true; });
  const Event after = compute.record();
  EXPECT_THAT(message_of([&] { compute.synchronize(); }), HasSubstr("the first failure"));
  EXPECT_THAT(message_of([&] { launch(compute, "more", {}, [](const Pointers&) {}); }), HasSubstr("the first failure"));
  EXPECT_THAT(message_of([&] { after.synchronize(); }), HasSubstr("the first failure"));
  EXPECT_NO_THROW(before.synchronize());
  EXPECT_TRUE(after.done());
  EXPECT_FALSE(later_ran);
}

// The host runs what an idle stream is given, and what it waits for; only who asks without waiting needs a worker. It
// learns of a failure no earlier than from a worker.
TEST(Sim, WhoWaitsRunsAndLearnsOfFailuresAsLate) {
  OneRank rank;
  Stream& compute = current_stream(sim);
  std::thread::id ran_on;
  const auto look = [&](const Pointers&) { ran_on = std::this_thread::get_id(); };
  launch(compute, "idle", {}, look);
  EXPECT_TRUE(compute.record().done());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  delay(compute, 5.0);
  launch(compute, "behind a delay", {}, look);
  const Event behind = compute.record();
  while (!behind.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_NE(ran_on, std::this_thread::get_id());
  Stream& copies = stream(sim, Role::copy_in);
  delay(compute, 5.0);
  copies.wait(compute.record());
  launch(copies, "behind another stream", {}, look);  // nobody but the host has a reason to run it
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

TEST(Sim, AStreamThatWaitsForAFailedOneFailsWithIt) {
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

TEST(Sim, ARankEndsWithoutDrainingItsQueues) {
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

TEST(Sim, CopiesToAndFromTheCpu) {
  OneRank rank;
  const MemoryPtr host = allocate(cpu, 8), device = allocate(sim, 8), back = allocate(cpu, 8, true);
  const double value = 2.5;
  write_from_host(*host, 0, &value, 8);
  Stream& copy = current_stream(sim);
  copy_bytes(copy, whole(device, Mode::write), whole(host, Mode::read));
  copy_bytes(copy, whole(back, Mode::write), whole(device, Mode::read));
  copy.record().synchronize();
  double seen = 0;
  read_to_host(&seen, *back, 0, 8);
  EXPECT_EQ(seen, 2.5);
  EXPECT_TRUE(order_violations().empty()) << order_violations()[0].message;
}

TEST(Sim, OnlyPinnedCopiesAreAsynchronous) {
  OneRank rank;
  const MemoryPtr pageable = allocate(cpu, 8), pinned = allocate(cpu, 8, true), device = allocate(sim, 8);
  Stream& copy = stream(sim, Role::copy_in);
  copy.wait(current_stream(sim).record());
  delay(copy, 200.0);
  copy_bytes(copy, whole(device, Mode::write), whole(pinned, Mode::read));
  EXPECT_FALSE(copy.record().done());
  copy_bytes(copy, whole(device, Mode::write), whole(pageable, Mode::read));
  EXPECT_TRUE(copy.record().done());
}

TEST(Launch, MixingDevicesIsAnError) {
  OneRank rank;
  const MemoryPtr a = allocate(cpu, 8), b = allocate(sim, 8), c = allocate({Kind::sim, 1}, 8);
  const auto add = [](const Pointers&) {};
  EXPECT_THAT(message_of([&] {
                launch(current_stream(cpu), "add", {whole(a, Mode::read), whole(b, Mode::write)}, add);
              }),
              AllOf(HasSubstr("`add`"), HasSubstr("sim:0"), HasSubstr("cpu")));
  EXPECT_THAT(message_of([&] {
                launch(current_stream(sim), "add", {whole(a, Mode::read), whole(b, Mode::write)}, add);
              }),
              HasSubstr("move it to sim:0"));
  EXPECT_THAT(message_of([&] {
                launch(current_stream(sim), "add", {whole(c, Mode::read), whole(b, Mode::write)}, add);
              }),
              HasSubstr("sim:1"));
}

TEST(Launch, RanksAsThreadsKeepApart) {
  const auto run_rank = [](int id) {
    RankContext context(id, 2);
    RankScope scope(context);
    const Device own = device_from_name("sim");
    const MemoryPtr memory = allocate(own, sizeof(int));
    write_from_host(*memory, 0, &id, sizeof id);
    for (int i = 0; i < 300; ++i) {
      launch(current_stream(own), "add", {whole(memory, Mode::update)}, [](const Pointers& p) { *p.as<int>(0) += 1; });
      const MemoryPtr scratch = allocate(own, 128);
      launch(current_stream(own), "fill", {whole(scratch, Mode::write)},
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
