#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/order.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

void nothing(const Pointers&) {}

// The bodies access no memory, because on sim the accesses would race.
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

TEST_P(OrderCheck, AcceptsOrderedAccesses) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  gather().wait(compute().record());
  touch(gather(), "all_gather", weight, Mode::read);
  compute().wait(gather().record());
  touch(compute(), "step", weight, Mode::update);
  EXPECT_THAT(order_violations(), SizeIs(0));
  EXPECT_GT(num_order_checks(), 0);
}

TEST_P(OrderCheck, FindsAnEventRecordedTooEarly) {
  const MemoryPtr weight = block();
  const Event early = compute().record();
  touch(compute(), "linear", weight, Mode::write);
  gather().wait(early);
  touch(gather(), "all_gather", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, FollowsOrderThroughAThirdStream) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  reduce().wait(compute().record());
  touch(reduce(), "scale", weight, Mode::update);
  gather().wait(reduce().record());
  touch(gather(), "all_gather", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(0));
}

TEST_P(OrderCheck, AcceptsConcurrentReads) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::read);
  touch(gather(), "all_gather", weight, Mode::read);
  touch(reduce(), "norm", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(0));
  // A write must be ordered after all of them.
  compute().wait(gather().record());
  touch(compute(), "step", weight, Mode::write);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, HasSubstr("`norm`"));
}

TEST_P(OrderCheck, AcceptsDisjointRanges) {
  const MemoryPtr weight = block(256);
  touch(compute(), "low", weight, Mode::write, 0, 128);
  touch(gather(), "high", weight, Mode::write, 128, 128);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(compute(), "straddle", weight, Mode::read, 120, 16);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, AllOf(HasSubstr("`high`"), HasSubstr("`straddle`")));
}

TEST_P(OrderCheck, RemembersAWriteBehindASubrangeWrite) {
  const MemoryPtr weight = block(128);
  touch(gather(), "all_gather", weight, Mode::write, 0, 128);
  reduce().wait(gather().record());
  touch(reduce(), "part", weight, Mode::write, 0, 64);
  compute().wait(reduce().record());
  touch(compute(), "linear", weight, Mode::read, 0, 128);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(gather(), "part again", weight, Mode::write, 0, 64);
  EXPECT_THAT(order_violations(), SizeIs(2));  // with `part` and with `linear`
}

TEST_P(OrderCheck, ForgetsPartsThatTheHostHasWaitedFor) {
  const MemoryPtr weight = block(256);
  touch(gather(), "kept", weight, Mode::write, 200, 1);
  for (std::size_t i = 0; i < 126; ++i) touch(compute(), "part", weight, Mode::write, i, 1);
  compute().synchronize();
  touch(compute(), "part 128", weight, Mode::write, 199, 1);  // every 128 parts those without a use are forgotten
  const std::int64_t before = num_order_checks();
  touch(compute(), "all", weight, Mode::write, 0, 256);
  EXPECT_EQ(num_order_checks() - before, 3);  // with the allocation, `kept` and `part 128`
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, AllOf(HasSubstr("`kept`"), HasSubstr("`all`")));
}

TEST_P(OrderCheck, DoesNotOrderByIssuing) {
  const MemoryPtr weight = block();
  touch(compute(), "linear", weight, Mode::write);
  touch(gather(), "all_gather", weight, Mode::read);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, OrdersLaunchesAfterHostWaits) {
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

TEST_P(OrderCheck, FindsReadsOnTheWrongStream) {
  const MemoryPtr weight = block();
  touch(gather(), "all_gather", weight, Mode::write);
  std::byte bytes[64];
  gather().synchronize();
  read_to_host(bytes, *weight, 0, 64);
  EXPECT_THAT(order_violations(), SizeIs(0));
  touch(gather(), "all_gather", weight, Mode::write);
  if (device() == cpu) {  // on sim the host's copy would be a real race
    read_to_host(bytes, *weight, 0, 64);
    ASSERT_THAT(order_violations(), SizeIs(1));
    EXPECT_THAT(order_violations()[0].message, HasSubstr("`read_to_host`"));
  }
}

TEST_P(OrderCheck, FindsFreeingDuringUse) {
  MemoryPtr weight = block();
  touch(gather(), "all_gather", weight, Mode::read);
  weight.reset();
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message,
              AllOf(HasSubstr("`all_gather`"), HasSubstr("freeing"), HasSubstr("fc1.weight")));
}

TEST_P(OrderCheck, AcceptsFreeingAfterTheAllocationStreamWaited) {
  MemoryPtr weight = block();
  touch(gather(), "all_gather", weight, Mode::read);
  compute().wait(gather().record());
  weight.reset();
  EXPECT_THAT(order_violations(), SizeIs(0));
}

TEST_P(OrderCheck, FindsUseWithoutAWaitForTheAllocationStream) {
  MemoryPtr first = block();
  touch(compute(), "linear", first, Mode::write);
  first.reset();
  const MemoryPtr second = allocate(device(), 64);  // the same bytes, which `linear` may still be writing
  touch(gather(), "all_gather", second, Mode::write);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, HasSubstr("allocating the block from the pool of " + compute().name()));
}

TEST_P(OrderCheck, FindsReuseWithoutAWaitForTheLastUser) {
  MemoryPtr first = block();
  touch(compute(), "linear", first, Mode::write);
  gather().wait(compute().record());
  reduce().wait(compute().record());  // before compute learns of the read below
  touch(gather(), "all_gather", first, Mode::read);
  compute().wait(gather().record());
  first.reset();
  const MemoryPtr second = allocate(device(), 64);  // the same bytes, which `all_gather` may still be reading
  touch(reduce(), "reduce_scatter", second, Mode::write);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST_P(OrderCheck, ReportsAPairOnce) {
  const MemoryPtr weight = block();
  for (int i = 0; i < 10; ++i) {
    touch(compute(), "linear", weight, Mode::write);
    touch(gather(), "all_gather", weight, Mode::read);
  }
  EXPECT_THAT(order_violations(), SizeIs(2));  // write then read, read then write
}

TEST_P(OrderCheck, KeepsAtMostTwentyViolations) {
  for (int i = 0; i < 30; ++i) {
    const MemoryPtr memory = block();
    memory->label = "block " + std::to_string(i);
    touch(compute(), "linear", memory, Mode::write);
    touch(gather(), "all_gather", memory, Mode::read);
    compute().wait(gather().record());
  }
  EXPECT_THAT(order_violations(), SizeIs(20));
}

TEST_P(OrderCheck, ChecksManySubranges) {
  const MemoryPtr flat = block(4096 * 4);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < 1024; ++i) touch(compute(), "grad", flat, Mode::write, i * 16, 16);
  }
  touch(gather(), "reduce", flat, Mode::read, 1023 * 16, 16);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message, HasSubstr("writing bytes 16368..16384"));
}

TEST_P(OrderCheck, AgreesWithAReferenceCheck) {
  // Compares random accesses and waits with a reference that remembers and compares all accesses.
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
    int known[3][3] = {};  // the point of stream j that stream i knows
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

TEST_P(OrderCheck, IgnoresAccessesWhileOff) {
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

TEST_P(OrderCheck, CountsDeferredLaunchesAtTheirIssue) {
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

// A violation would be that the block is freed on the stream of its allocation.
TEST(OrderCheckAfterAFailure, CountsNoAccessOfARefusedLaunch) {
  RankContext context(0, 1);
  RankScope scope(context);
  Stream& gather = stream(sim, Role::all_gather);
  {
    const MemoryPtr weight = allocate(sim, 64);
    gather.wait(current_stream(sim).record());
    launch_deferred(gather, "fails", {}, nothing, [](const Pointers&) { throw Error("on purpose"); });
    EXPECT_THROW(gather.synchronize(), Error);
    const Access all[] = {{weight.get(), 0, 64, Mode::write}}, half[] = {{weight.get(), 0, 32, Mode::write}};
    EXPECT_THROW(launch_deferred(gather, "all_gather", all, nothing, nothing), Error);
    EXPECT_THROW(launch_deferred(gather, "all_gather", half, nothing, nothing), Error);
    EXPECT_THROW(launch(gather, "add", all, nothing), Error);
  }
  EXPECT_THAT(order_violations(), SizeIs(0));
  clear_failures();
}

TEST(OrderCheckAcrossDevices, FindsAMissingWaitAfterAnAsynchronousCopy) {
  RankContext context(0, 1);
  RankScope scope(context);
  const MemoryPtr pinned = allocate_pinned(sim, 64), device = allocate(sim, 64);
  copy_bytes(current_stream(sim), {pinned.get(), 0, 64, Mode::write}, {device.get(), 0, 64, Mode::read});
  launch(current_stream(cpu), "use", {Access{pinned.get(), 0, 64, Mode::read}}, nothing);
  ASSERT_THAT(order_violations(), SizeIs(1));
  EXPECT_THAT(order_violations()[0].message,
              AllOf(HasSubstr("`copy` on sim:0/compute"), HasSubstr("`use` on cpu/compute")));
  current_stream(cpu).wait(current_stream(sim).record());
  launch(current_stream(cpu), "use", {Access{pinned.get(), 0, 64, Mode::read}}, nothing);
  EXPECT_THAT(order_violations(), SizeIs(1));
}

TEST(OrderCheckAcrossDevices, RejectsTooManyStreams) {
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

}  // namespace
}  // namespace lockstep::device
