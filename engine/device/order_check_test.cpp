#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

constexpr Device cpu{Kind::cpu, 0};
constexpr Device sim{Kind::sim, 0};

void nothing(const Pointers&) {}

// On sim the accesses really race, so the bodies here touch nothing.
class OrderCheck : public testing::TestWithParam<Kind> {
 protected:
  Device device() const { return {GetParam(), 0}; }
  Stream& compute() { return stream(device(), Role::compute); }
  Stream& gather() { return stream(device(), Role::all_gather); }
  Stream& reduce() { return stream(device(), Role::reduce_scatter); }
  MemoryPtr block(std::size_t bytes = 64) {
    MemoryPtr memory = allocate(device(), bytes);
    memory->label = "fc1.weight";
    gather().wait(compute().record());
    reduce().wait(compute().record());
    return memory;
  }
  void touch(Stream& on, const char* name, const MemoryPtr& memory, Mode mode, std::size_t begin = 0,
             std::size_t bytes = 64) {
    launch(on, name, {Access{memory.get(), begin, bytes, mode}}, nothing);
  }

  RankContext context_{0, 1};
  RankScope scope_{context_};
};
INSTANTIATE_TEST_SUITE_P(Devices, OrderCheck, testing::Values(Kind::cpu, Kind::sim),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST_P(OrderCheck, FindsAMissingWait) {
  context_.place = "scenario.yaml:12";
  context_.scenario_line = 12;
  context_.iteration = 3;
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write, 0, 32);
  touch(gather(), "all_gather", weight, Mode::read, 16, 48);
  ASSERT_THAT(order_violations(), SizeIs(1));
  const OrderViolation& found = order_violations()[0];
  EXPECT_THAT(found.message, AllOf(HasSubstr("`linear` on " + compute().name() + " writing bytes 0..32"),
                                   HasSubstr("`all_gather` on " + gather().name() + " reading bytes 16..64"),
                                   HasSubstr("fc1.weight"), HasSubstr("scenario.yaml:12")));
  EXPECT_EQ(found.scenario_line, 12);
  EXPECT_EQ(found.iteration, 3);
  EXPECT_GT(found.time_ns, 0);
}

TEST_P(OrderCheck, ReportsNothingWhenTheWaitIsThere) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  gather().wait(compute().record());
  touch(gather(), "all_gather", weight, Mode::read);
  compute().wait(gather().record());
  touch(compute(), "step", weight, Mode::update);
  EXPECT_THAT(order_violations(), SizeIs(0));
  EXPECT_GT(num_order_checks(), 0);
}

TEST_P(OrderCheck, AnEventRecordedTooEarlyDoesNotOrder) {
  const MemoryPtr weight = block();
  const Event early = compute().record();
  touch(compute(), "linear", weight, Mode::write);
  gather().wait(early);
  touch(gather(), "all_gather", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, OrderPassesThroughAThirdStream) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  reduce().wait(compute().record());
  touch(reduce(), "scale", weight, Mode::update);
  gather().wait(reduce().record());
  touch(gather(), "all_gather", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(0));
}

TEST_P(OrderCheck, ReadsDoNotConflict) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::read);
  touch(gather(), "all_gather", weight, Mode::read);
  touch(reduce(), "norm", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(0));
  // A write must come after all of them.
  compute().wait(gather().record());
  touch(compute(), "step", weight, Mode::write);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, HasSubstr("`norm`"));
}

TEST_P(OrderCheck, RangesThatDoNotMeetDoNotConflict) {
  const MemoryPtr weight = block(256);
  touch(compute(), "low", weight, Mode::write, 0, 128);
  touch(gather(), "high", weight, Mode::write, 128, 128);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(compute(), "straddle", weight, Mode::read, 120, 16);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, AllOf(HasSubstr("`high`"), HasSubstr("`straddle`")));
}

TEST_P(OrderCheck, APartialWriteDoesNotHideAnEarlierOne) {
  const MemoryPtr weight = block(128);
  touch(gather(), "all_gather", weight, Mode::write, 0, 128);
  reduce().wait(gather().record());
  touch(reduce(), "part", weight, Mode::write, 0, 64);
  compute().wait(reduce().record());
  touch(compute(), "linear", weight, Mode::read, 0, 128);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(gather(), "part again", weight, Mode::write, 0, 64);
  EXPECT_THAT(order_violations(), SizeIs(2));  // part and linear
}

TEST_P(OrderCheck, IssuingGivesTheHostNoEdge) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  const Event event = compute().record();
  while (!event.done()) std::this_thread::yield();  // asking is not waiting
  touch(gather(), "all_gather", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, WhatTheHostWaitedForIsKnownToWhatItIssues) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  compute().synchronize();
  touch(gather(), "all_gather", weight, Mode::write);
  gather().record().synchronize();
  touch(reduce(), "reduce_scatter", weight, Mode::update);
  std::byte bytes[64];
  {
    StreamScope current(reduce());
    read_to_host(bytes, *weight, 0, 64);
  }
  touch(compute(), "linear", weight, Mode::write);
  EXPECT_THAT(order_violations(), SizeIs(0));
}

TEST_P(OrderCheck, ReadingFromTheWrongStreamIsFound) {
  const MemoryPtr weight = block();
  touch(gather(), "all_gather", weight, Mode::write);
  std::byte bytes[64];
  gather().synchronize();
  read_to_host(bytes, *weight, 0, 64);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(gather(), "all_gather", weight, Mode::write);
  if (device() == cpu) {  // on sim this would be a true race of the host's copy
    read_to_host(bytes, *weight, 0, 64);
    ASSERT_THAT(order_violations(), SizeIs(1));
    EXPECT_THAT(order_violations()[0].message, HasSubstr("`read_to_host`"));
  }
}

TEST_P(OrderCheck, FreeingWhileAnotherStreamUsesItIsFound) {
  MemoryPtr weight = block();
  touch(gather(), "all_gather", weight, Mode::read);
  weight.reset();
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message,
              AllOf(HasSubstr("`all_gather`"), HasSubstr("freeing"), HasSubstr("fc1.weight")));
}

TEST_P(OrderCheck, FreeingAfterTheHomeStreamWaitedIsFine) {
  MemoryPtr weight = block();
  touch(gather(), "all_gather", weight, Mode::read);
  compute().wait(gather().record());
  weight.reset();
  EXPECT_THAT(order_violations(), SizeIs(0));
}

TEST_P(OrderCheck, UsingABlockOnAnotherStreamNeedsAWaitForItsHome) {
  MemoryPtr first = block();
  touch(compute(), "linear", first, Mode::write);
  first.reset();
  const MemoryPtr second = allocate(device(), 64);  // the same bytes, which `linear` may still be writing
  touch(gather(), "all_gather", second, Mode::write);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, HasSubstr("taking the block from the pool of " + compute().name()));
}

TEST_P(OrderCheck, WhatTheHomeStreamLearnedComesWithTheBlock) {
  MemoryPtr first = block();
  touch(compute(), "linear", first, Mode::write);
  gather().wait(compute().record());
  reduce().wait(compute().record());  // before compute knows of the read that follows
  touch(gather(), "all_gather", first, Mode::read);
  compute().wait(gather().record());
  first.reset();
  const MemoryPtr second = allocate(device(), 64);  // the same bytes, which `all_gather` may still be reading
  touch(reduce(), "reduce_scatter", second, Mode::write);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, TheSamePairIsReportedOnce) {
  const MemoryPtr weight = block();
  for (int i = 0; i < 10; ++i) {
    touch(compute(), "linear", weight, Mode::write);
    touch(gather(), "all_gather", weight, Mode::read);
  }
  EXPECT_THAT(order_violations(), SizeIs(2));  // write then read, read then write
}

TEST_P(OrderCheck, KeepsAtMostTwenty) {
  for (int i = 0; i < 30; ++i) {
    const MemoryPtr memory = block();
    memory->label = "block " + std::to_string(i);
    touch(compute(), "linear", memory, Mode::write);
    touch(gather(), "all_gather", memory, Mode::read);
    compute().wait(gather().record());
  }
  EXPECT_THAT(order_violations(), SizeIs(20));
}

TEST_P(OrderCheck, ManySlicesStayWatched) {
  const MemoryPtr flat = block(4096 * 4);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < 1024; ++i) touch(compute(), "grad", flat, Mode::write, i * 16, 16);
  }
  touch(gather(), "reduce", flat, Mode::read, 1023 * 16, 16);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, HasSubstr("writing bytes 16368..16384"));
}

TEST_P(OrderCheck, AgreesWithAPlainListOfAllAccesses) {
  // Random accesses and waits against a check that forgets nothing and compares everything, byte for byte.
  struct Seen {
    std::size_t begin, end;
    int stream;
    int count;
    bool writes;
  };
  std::mt19937 draws(5);
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t before = order_violations().size();
    if (before == 20) break;
    synchronize_all();
    const MemoryPtr memory = block(64);
    memory->label = "round " + std::to_string(round);
    Stream* streams[] = {&compute(), &gather(), &reduce()};
    int known[3][3] = {};  // how far stream i knows stream j
    std::vector<Seen> all;
    bool conflict = false;
    for (int step = 0; step < 12 && !conflict; ++step) {
      const int on = static_cast<int>(draws() % 3);
      if (draws() % 2 == 0) {
        const int awaited = static_cast<int>(draws() % 3);
        streams[on]->wait(streams[awaited]->record());
        for (int i = 0; i < 3; ++i) known[on][i] = std::max(known[on][i], known[awaited][i]);
        continue;
      }
      const std::size_t begin = draws() % 3 == 0 ? 0 : draws() % 60;
      const std::size_t end = begin == 0 ? 64 : begin + 1 + draws() % (64 - begin);
      const bool writes = draws() % 2 == 0;
      ++known[on][on];
      for (const Seen& seen : all) {
        conflict = conflict || (seen.begin < end && begin < seen.end && (writes || seen.writes) && seen.stream != on &&
                                seen.count > known[on][seen.stream]);
      }
      all.push_back({begin, end, on, known[on][on], writes});
      touch(*streams[on], "step", memory, writes ? Mode::write : Mode::read, begin, end - begin);
    }
    ASSERT_EQ(order_violations().size() > before, conflict) << "round " << round << ", seed 5";
    found += conflict;
    for (Stream* stream : streams) stream->synchronize();
  }
  EXPECT_GT(found, 5);
}

TEST_P(OrderCheck, OffItSeesNothingAndOnAgainStartsAfresh) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  set_order_check(false);
  EXPECT_FALSE(order_check_on());
  const std::int64_t checked = num_order_checks();
  touch(gather(), "all_gather", weight, Mode::write);
  EXPECT_EQ(num_order_checks(), checked);
  set_order_check(true);
  touch(reduce(), "reduce_scatter", weight, Mode::write);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(compute(), "linear", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, DeferredLaunchesCountWhereTheyAreIssued) {
  const MemoryPtr weight = block();
  const Access access[] = {{weight.get(), 0, 64, Mode::update}};
  launch_deferred(gather(), "all_gather", access, nothing, nothing);
  touch(compute(), "linear", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
  const MemoryPtr other = block();
  const Access second[] = {{other.get(), 0, 64, Mode::update}};
  launch_deferred(gather(), "all_gather", second, nothing, nothing);
  compute().wait(gather().record());
  touch(compute(), "linear", other, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST(OrderCheckAcrossDevices, AsynchronousCopiesToTheCpuNeedAWait) {
  RankContext context(0, 1);
  RankScope scope(context);
  const MemoryPtr pinned = allocate(cpu, 64, true), device = allocate(sim, 64);
  copy_bytes(current_stream(sim), {pinned.get(), 0, 64, Mode::write}, {device.get(), 0, 64, Mode::read});
  launch(current_stream(cpu), "use", {Access{pinned.get(), 0, 64, Mode::read}}, nothing);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message,
              AllOf(HasSubstr("`copy` on sim:0/compute"), HasSubstr("`use` on cpu/compute")));
  current_stream(cpu).wait(current_stream(sim).record());
  launch(current_stream(cpu), "use", {Access{pinned.get(), 0, 64, Mode::read}}, nothing);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST(OrderCheckAcrossDevices, TooManyStreamsAreRefused) {
  RankContext context(0, 1);
  RankScope scope(context);
  EXPECT_THROW(
      {
        for (int index = 0; index < 3; ++index) {
          for (int role = 0; role < num_roles; ++role) stream({Kind::sim, index}, static_cast<Role>(role));
        }
      },
      Error);
}

class Poison : public OrderCheck {};
INSTANTIATE_TEST_SUITE_P(Devices, Poison, testing::Values(Kind::cpu, Kind::sim),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST_P(Poison, FillsWhatALaunchOnlyWrites) {
  const MemoryPtr memory = block(), input = block();
  std::byte bytes[64] = {};
  write_from_host(*memory, 0, bytes, 64);
  write_from_host(*input, 0, bytes, 64);
  set_poison(true);
  launch(compute(), "writes half", {Access{memory.get(), 0, 64, Mode::write}, Access{input.get(), 0, 64, Mode::update}},
         [](const Pointers& p) { std::memset(p.at(0), 7, 32); });
  read_to_host(bytes, *memory, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[31]), 7);
  EXPECT_EQ(static_cast<int>(bytes[32]), 0xff);
  read_to_host(bytes, *input, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[0]), 0);
}

TEST_P(Poison, CatchesAWriteDeclaredAsRead) {
  const MemoryPtr memory = block();
  std::byte bytes[64] = {};
  write_from_host(*memory, 0, bytes, 64);
  set_poison(true);
  const auto run = [&](Mode mode) {
    launch(compute(), "sneaky", {Access{memory.get(), 0, 64, mode}},
           [](const Pointers& p) { p.at(0)[63] = std::byte{1}; });
    compute().synchronize();
  };
  EXPECT_NO_THROW(run(Mode::update));
  write_from_host(*memory, 0, bytes, 64);
  try {
    run(Mode::read);
    FAIL() << "not caught";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("`sneaky`"), HasSubstr("fc1.weight")));
  }
}

TEST_P(Poison, LeavesInPlaceOperandsAlone) {
  const MemoryPtr memory = block();
  std::byte bytes[64] = {};
  bytes[5] = std::byte{3};
  write_from_host(*memory, 0, bytes, 64);
  set_poison(true);
  launch(compute(), "in place", {Access{memory.get(), 0, 64, Mode::read}, Access{memory.get(), 0, 64, Mode::write}},
         [](const Pointers& p) { p.at(1)[6] = p.at(0)[5]; });
  read_to_host(bytes, *memory, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[5]), 3);
  EXPECT_EQ(static_cast<int>(bytes[6]), 3);
}

TEST_P(Poison, HoldsForDeferredLaunches) {
  const MemoryPtr memory = block(), out = block();
  std::byte bytes[64] = {};
  write_from_host(*memory, 0, bytes, 64);
  write_from_host(*out, 0, bytes, 64);
  set_poison(true);
  const Access accesses[] = {{memory.get(), 0, 64, Mode::read}, {out.get(), 0, 64, Mode::write}};
  launch_deferred(compute(), "collective", accesses, nothing, [](const Pointers& p) { p.at(1)[0] = std::byte{1}; });
  read_to_host(bytes, *out, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[0]), 1);
  EXPECT_EQ(static_cast<int>(bytes[1]), 0xff);
  launch_deferred(compute(), "sneaky", accesses, nothing, [](const Pointers& p) { p.at(0)[0] = std::byte{1}; });
  EXPECT_THROW(compute().synchronize(), Error);
}

}  // namespace
}  // namespace lockstep::device
