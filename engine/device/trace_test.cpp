#include "engine/device/trace.hpp"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/order.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

void nothing(const Pointers&) {}

TEST(Trace, RecordsNothingWhenOff) {
  OneRank rank;
  launch(current_stream(cpu), "before", {}, nothing);
  EXPECT_FALSE(tracing());
  EXPECT_TRUE(trace().launches.empty());
  EXPECT_TRUE(trace().memory.empty());
  EXPECT_FALSE(current_stream(cpu).is_instrumented());
}

TEST(Trace, RecordsStreamsOrderAndTimes) {
  OneRank rank;
  launch(current_stream(cpu), "before", {}, nothing);  // creates a stream before the trace starts
  start_trace({});
  rank.context.iteration = 3;
  rank.context.scenario_line = 17;
  delay(current_stream(cpu), 2.0);
  launch(stream(sim, Role::copy_in), "on sim", {}, nothing);
  synchronize_all();
  const Trace seen = trace();
  ASSERT_EQ(seen.launches.size(), 2u);
  const TracedLaunch& first = seen.launches[0];
  EXPECT_STREQ(first.name, "delay");
  EXPECT_EQ(first.iteration, 3);
  EXPECT_EQ(first.scenario_line, 17);
  EXPECT_FALSE(first.deferred);
  EXPECT_LE(first.issued_ns, first.begin_ns);
  EXPECT_GE(first.end_ns - first.begin_ns, 2'000'000);
  const TracedLaunch& second = seen.launches[1];
  EXPECT_STREQ(second.name, "on sim");
  EXPECT_GE(second.issued_ns, first.end_ns);
  EXPECT_GE(second.end_ns, second.begin_ns);
  ASSERT_EQ(seen.streams.size(), 2u);
  EXPECT_EQ(seen.streams[0].name, "cpu/compute");
  EXPECT_EQ(seen.streams[1].name, "sim:0/copy_in");
  EXPECT_EQ(first.stream, seen.streams[0].id);
  EXPECT_EQ(second.stream, seen.streams[1].id);
  EXPECT_TRUE(current_stream(cpu).is_instrumented());
}

TEST(Trace, TagsDeferredLaunchesAtTheirIssue) {
  OneRank rank;
  std::uint64_t at = 7;
  start_trace({.tag = [&at] { return at; }});
  for (const Device device : {cpu, sim}) {
    launch_deferred(stream(device, Role::all_reduce), "all_reduce", {}, nothing, nothing);
    at = 8;
    launch(stream(device, Role::all_reduce), "plain", {}, nothing);
  }
  synchronize_all();
  const Trace seen = trace();
  ASSERT_EQ(seen.launches.size(), 4u);
  const TracedLaunch& halves = seen.launches[0];
  EXPECT_TRUE(halves.deferred);
  EXPECT_EQ(halves.tag, 7u);
  EXPECT_LE(halves.begin_ns, halves.resumed_ns);
  EXPECT_LE(halves.resumed_ns, halves.end_ns);
  EXPECT_FALSE(seen.launches[1].deferred);
  EXPECT_EQ(seen.launches[1].tag, 0u);
  EXPECT_TRUE(seen.launches[2].deferred);
  EXPECT_EQ(seen.launches[2].tag, 8u);
  EXPECT_EQ(seen.launches[2].resumed_ns, 0);  // the worker runs both halves together
  EXPECT_GT(seen.launches[2].end_ns, 0);
  EXPECT_FALSE(seen.launches[3].deferred);
}

TEST(Trace, KnowsWhatOrdersLaunches) {
  for (const Device device : {cpu, sim}) {
    OneRank rank;
    start_trace({});
    Stream &compute = stream(device, Role::compute), &gather = stream(device, Role::all_gather);
    launch(compute, "before", {}, nothing);
    const Event event = compute.record();
    launch(compute, "beside", {}, nothing);
    gather.wait(event);
    launch(gather, "gather", {}, nothing);
    gather.synchronize();
    launch(compute, "after", {}, nothing);
    synchronize_all();
    const Trace seen = trace();
    ASSERT_EQ(seen.launches.size(), 4u);
    const TracedLaunch &before = seen.launches[0], &beside = seen.launches[1], &gathered = seen.launches[2],
                       &after = seen.launches[3];
    EXPECT_TRUE(ordered(before, beside));
    EXPECT_FALSE(ordered(beside, before));
    EXPECT_TRUE(ordered(before, gathered));
    EXPECT_FALSE(ordered(beside, gathered));
    EXPECT_FALSE(ordered(gathered, beside));
    EXPECT_TRUE(ordered(gathered, after));
  }
}

TEST(Trace, LeavesFailedLaunchesWithoutEnd) {
  OneRank rank;
  start_trace({});
  EXPECT_THROW(launch(current_stream(cpu), "fails", {}, [](const Pointers&) { throw Error("on purpose"); }), Error);
  launch(current_stream(cpu), "after", {}, nothing);
  const Trace seen = trace();
  ASSERT_EQ(seen.launches.size(), 2u);
  EXPECT_GT(seen.launches[0].begin_ns, 0);
  EXPECT_EQ(seen.launches[0].end_ns, 0);
  EXPECT_GT(seen.launches[1].end_ns, 0);
}

TEST(Trace, CountsDroppedLaunches) {
  OneRank rank;
  start_trace({.max_launches = 5});
  int ran = 0;
  for (int i = 0; i < 12; ++i) launch(current_stream(cpu), "count", {}, [&ran](const Pointers&) { ++ran; });
  EXPECT_EQ(ran, 12);
  EXPECT_EQ(trace().launches.size(), 5u);
  EXPECT_EQ(trace().num_dropped, 7);
  EXPECT_THROW(start_trace({}), Error);
}

TEST(Trace, SamplesEveryMemoryChange) {
  OneRank rank;
  const MemoryPtr before = allocate(cpu, 10, Purpose::parameter);
  start_trace({});
  MemoryPtr kept = allocate(cpu, 100, Purpose::activation);
  repurpose(*kept, Purpose::gradient);
  kept.reset();
  const Trace seen = trace();
  const auto at = [&seen](std::size_t i, Purpose of) { return seen.memory[i].bytes[static_cast<std::size_t>(of)]; };
  ASSERT_EQ(seen.memory.size(), 4u);
  EXPECT_EQ(at(0, Purpose::parameter), 10);
  EXPECT_EQ(at(0, Purpose::activation), 0);
  EXPECT_EQ(at(1, Purpose::activation), 100);
  EXPECT_EQ(at(2, Purpose::activation), 0);
  EXPECT_EQ(at(2, Purpose::gradient), 100);
  EXPECT_EQ(at(3, Purpose::gradient), 0);
  EXPECT_EQ(at(3, Purpose::parameter), 10);
  for (std::size_t i = 1; i < seen.memory.size(); ++i) EXPECT_GE(seen.memory[i].time_ns, seen.memory[i - 1].time_ns);
}

TEST(Trace, KeepsPeakAndLastSampleWhenMerging) {
  OneRank rank;
  start_trace({.max_samples = 20});
  for (int i = 0; i < 500; ++i) {
    const std::size_t bytes = i == 321 ? 5000 : 64;
    const MemoryPtr one = allocate(cpu, bytes, Purpose::gathered);
  }
  const MemoryPtr last = allocate(cpu, 77, Purpose::other);
  const Trace seen = trace();
  EXPECT_LE(seen.memory.size(), 20u);
  EXPECT_GE(seen.memory.size(), 8u);
  std::int64_t peak = 0;
  for (const MemorySample& sample : seen.memory)
    peak = std::max(peak, sample.bytes[static_cast<std::size_t>(Purpose::gathered)]);
  EXPECT_EQ(peak, 5000);
  EXPECT_EQ(seen.memory.back().bytes[static_cast<std::size_t>(Purpose::other)], 77);
}

TEST(Trace, KeepsTheFirstOfEqualPeaksWhenMerging) {
  OneRank rank;
  start_trace({.max_samples = 4});
  // More changes than entries, between 0 and 64 bytes.
  for (const Purpose purpose : {Purpose::gradient, Purpose::other, Purpose::optimizer, Purpose::gathered})
    const MemoryPtr one = allocate(cpu, 64, purpose);
  const std::vector<MemorySample> samples = trace().memory;
  ASSERT_FALSE(samples.empty());
  EXPECT_EQ(samples.front().bytes[static_cast<std::size_t>(Purpose::gradient)], 64);
}

TEST(Trace, WorksWithPoison) {
  OneRank rank;
  set_poison(true);
  start_trace({});
  set_poison(false);
  EXPECT_TRUE(current_stream(cpu).is_instrumented());
  launch(current_stream(cpu), "one", {}, nothing);
  EXPECT_EQ(trace().launches.size(), 1u);
}

}  // namespace
}  // namespace lockstep::device
