#include "harness/launch/schedule_search.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/device/stream.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/launch/test_support.hpp"

namespace lockstep::launch {
namespace {

using namespace testing_support;
using schedule::Switch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs each function as the thread of one rank under the schedule.
void run_actors(RunSchedule& run, const std::vector<std::function<void()>>& functions) {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < functions.size(); ++i) ranks.push_back(static_cast<int>(i));
  RankActors actors(ranks, &run);
  std::vector<std::thread> threads;
  for (const int rank : ranks)
    threads.emplace_back([&, rank] {
      const RankActors::Turn turn(actors, rank);
      functions[static_cast<std::size_t>(rank)]();
    });
  actors.start();
  for (std::thread& thread : threads) thread.join();
}

// Two actors add 1 to a number: each reads it, and writes after a point at which the other one may run.
int lost_update(RunSchedule& run) {
  int number = 0;
  const auto add = [&] {
    const int seen = number;
    schedule::point();
    number = seen + 1;
  };
  run_actors(run, {add, add});
  return number;
}

std::vector<std::string> order_of(RunSchedule& run, const ScheduleSpec& spec) {
  run.spec = spec;
  std::vector<std::string> order;
  const auto act = [&](const char* name) {
    for (int i = 0; i < 4; ++i) {
      order.push_back(str(name, i));
      schedule::point();
    }
  };
  run_actors(run, {[&] { act("a"); }, [&] { act("b"); }, [&] { act("c"); }});
  return order;
}

TEST(Schedule, WithoutSwitchesLetsEachActorRunToItsEnd) {
  RunSchedule run;
  EXPECT_THAT(order_of(run, {}), ElementsAre("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "c0", "c1", "c2", "c3"));
  EXPECT_TRUE(run.record().switches().empty());
}

TEST(Schedule, SwitchesWhereTheListSays) {
  RunSchedule run;
  const std::vector<Switch> switches = {{"rank 0", 2, "rank 2"}, {"rank 2", 1, "rank 1"}};
  EXPECT_THAT(order_of(run, {.switches = switches}),
              ElementsAre("a0", "a1", "c0", "b0", "b1", "b2", "b3", "c1", "c2", "c3", "a2", "a3"));
  EXPECT_EQ(run.record().switches(), switches);
}

class EachPolicy : public ::testing::TestWithParam<SchedulePolicy> {};
INSTANTIATE_TEST_SUITE_P(Policy, EachPolicy, ::testing::Values(SchedulePolicy::random, SchedulePolicy::pct));

TEST_P(EachPolicy, RepeatsASeedAndItsSwitchesExactly) {
  std::set<std::vector<std::string>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RunSchedule run;
    const ScheduleSpec spec{.kind = GetParam(), .seed = seed, .depth = 3, .steps = 15};
    const std::vector<std::string> order = order_of(run, spec);
    const std::uint64_t digest = run.record().digest;
    const std::vector<Switch> switches = run.record().switches();
    EXPECT_EQ(order_of(run, spec), order) << "seed " << seed;
    EXPECT_EQ(run.record().digest, digest);
    EXPECT_EQ(order_of(run, {.switches = switches}), order) << "seed " << seed;
    EXPECT_EQ(run.record().digest, digest);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 5u);
}

// A search takes one seed after the other. The change points of pct follow from the seed and from the run without
// switches, so that the seed alone repeats the schedule.
TEST(ScheduleSearch, TakesTheStepsOfPctFromTheRunWithoutSwitches) {
  ScheduleSearch search(request_from_text("pct:3,5"), 3);
  const auto record = std::make_unique<schedule::Record>();
  record->num_decisions = 40;
  std::optional<ScheduleSpec> spec = search.next();
  ASSERT_TRUE(spec.has_value());
  EXPECT_EQ(spec->kind, SchedulePolicy::replay);
  EXPECT_TRUE(spec->switches.empty());
  search.ran(*record);
  for (const std::uint64_t seed : {5u, 6u, 7u}) {
    spec = search.next();
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(spec->kind, SchedulePolicy::pct);
    EXPECT_EQ(spec->seed, seed);
    EXPECT_EQ(spec->depth, 3);
    EXPECT_EQ(spec->steps, 40u) << "seed " << seed;
    record->num_decisions += 10;
    search.ran(*record);
  }
  EXPECT_FALSE(search.next().has_value());
}

// Interleavings of three actors with two actions each: 6! / (2! 2! 2!) = 90.
TEST(ExhaustiveSearch, RunsEveryOrderOnce) {
  ScheduleSearch search(request_from_text("exhaustive:100000"), 1);
  RunSchedule run;
  std::set<std::vector<int>> orders;
  std::size_t fewest = 0;
  while (const auto spec = search.next()) {
    EXPECT_GE(spec->switches.size(), fewest) << "fewer switches come first";
    fewest = spec->switches.size();
    run.spec = *spec;
    std::vector<int> order;
    const auto act = [&](int name) {
      order.push_back(name);
      schedule::point();
      order.push_back(name);
    };
    run_actors(run, {[&] { act(0); }, [&] { act(1); }, [&] { act(2); }});
    EXPECT_EQ(run.record().switches(), spec->switches);
    orders.insert(order);
    search.ran(run.record());
  }
  EXPECT_TRUE(search.has_run_all());
  // The first actor in order begins. By symmetry, a third of the orders begin with it.
  EXPECT_EQ(orders.size(), 30u);
  EXPECT_EQ(search.num_run(), 30);
}

TEST(ExhaustiveSearch, FindsALostUpdateWithOneSwitch) {
  ScheduleSearch search(request_from_text("exhaustive:10"), 1);
  RunSchedule run;
  while (const auto spec = search.next()) {
    run.spec = *spec;
    if (lost_update(run) != 2) break;
    search.ran(run.record());
  }
  EXPECT_EQ(search.text(), "rank 0 #1 -> rank 1");
}

TEST(SwitchShrinker, LeavesTheOneSwitchOfALostUpdate) {
  RunSchedule run;
  std::uint64_t seed = 0;
  do run.spec = {.kind = SchedulePolicy::random, .seed = seed++};
  while (lost_update(run) == 2);
  // Switches that have no effect are left out, too.
  std::vector<Switch> failing = run.record().switches();
  for (std::uint32_t i = 10; i < 30; ++i) failing.insert(failing.begin(), {"rank 1", i, "rank 0"});
  SwitchShrinker shrinker(failing, 100);
  while (const auto candidate = shrinker.candidate()) {
    run.spec = {.switches = *candidate};
    const bool fails = lost_update(run) != 2;
    shrinker.judged(fails, run.record());
  }
  EXPECT_EQ(shrinker.switches().size(), 1u);
  run.spec = {.switches = shrinker.switches()};
  EXPECT_EQ(lost_update(run), 1);
}

// Whichever of the switches a failure needs, one or two of them, no other one is left.
TEST(SwitchShrinker, LeavesOnlySwitchesThatAreNeeded) {
  const auto record = std::make_unique<schedule::Record>();
  record->num_decisions = 1;  // none of them is kept, so the record does not say which switches had an effect
  std::vector<Switch> failing;
  for (std::uint32_t step = 1; step <= 8; ++step) failing.push_back({"rank 0", step, "rank 1"});
  for (std::size_t a = 0; a < failing.size(); ++a) {
    for (std::size_t b = a; b < failing.size(); ++b) {
      SwitchShrinker shrinker(failing, 1000);
      while (const auto candidate = shrinker.candidate()) {
        const bool has_a = std::find(candidate->begin(), candidate->end(), failing[a]) != candidate->end();
        const bool has_b = std::find(candidate->begin(), candidate->end(), failing[b]) != candidate->end();
        shrinker.judged(has_a && has_b, *record);
      }
      EXPECT_EQ(shrinker.switches().size(), a == b ? 1u : 2u) << "switches " << a << " and " << b;
    }
  }
}

TEST(Schedule, NamesTheWaitsWhenNoActorCanRun) {
  RunSchedule run;
  std::vector<std::string> errors;
  const auto wait = [&] {
    try {
      schedule::self()->wait("a thing that never happens", [] { return false; });
    } catch (const InternalError& error) {
      errors.push_back(error.message());
    }
  };
  run_actors(run, {wait, wait});
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors.front(),
            "no actor of the schedule can run: rank 0 waits for a thing that never happens; "
            "rank 1 waits for a thing that never happens;");
}

TEST(ScheduleRequest, ReadsItsForms) {
  EXPECT_EQ(request_from_text("random:7").seed, 7u);
  EXPECT_EQ(request_from_text("pct:3,9").depth, 3);
  EXPECT_EQ(request_from_text("pct:3,9").seed, 9u);
  EXPECT_EQ(request_from_text("exhaustive:12").bound, 12);
  EXPECT_EQ(request_from_text("replay:a").file, "a");
  EXPECT_EQ(request_from_text("./a").file, "./a");
  for (const char* wrong : {"random", "random:", "random:-1", "random:7x", "pct:3", "pct:0,1", "exhaustive:0", "fair:1",
                            "replay:", "random:99999999999999999999"}) {
    EXPECT_THROW(request_from_text(wrong), Error) << wrong;
  }
}

TEST(Switch, ReadsWhatItWrites) {
  const Switch change{"rank 0 sim:0/compute", 12, "rank 11"};
  EXPECT_EQ(to_text(change), "rank 0 sim:0/compute #12 -> rank 11");
  EXPECT_EQ(schedule::switch_from_text(to_text(change)), change);
  for (const char* wrong : {"", "rank 0 -> rank 1", "rank 0 #x -> rank 1", "rank 0 #1 -> ", "0 #1 -> rank 1"})
    EXPECT_THROW(schedule::switch_from_text(wrong), Error) << wrong;
}

LaunchOptions scheduled(int world_size, const ScheduleSpec& spec) {
  LaunchOptions options = options_for(world_size, Launch::thread);
  options.schedule = std::make_shared<RunSchedule>();
  options.schedule->spec = spec;
  return options;
}

// Three ranks, each of which waits for the next one.
TEST(ScheduledRanks, NameADeadlockAtOnce) {
  const LaunchOptions options = scheduled(3, {.kind = SchedulePolicy::random, .seed = 3});
  const LaunchResult result = launch(options, [](int rank) {
    const std::vector<std::vector<int>> pairs = {{0, 1}, {1, 2}, {0, 2}};
    comm::barrier(comm::group_of(pairs[static_cast<std::size_t>(rank)]));
    return fine(rank);
  });
  for (const verdict::RankOutcome& outcome : result.outcomes) {
    ASSERT_FALSE(outcome.failures.empty());
    EXPECT_THAT(outcome.failures.front().message, HasSubstr("deadlock: rank 0 waits for rank 1"));
  }
  EXPECT_LT(result.seconds, 5.0);
}

// One stream writes a block and another one copies it; then the host reads the copy.
float copy_beside(bool waits) {
  using namespace device;
  const Device sim = device_from_name("sim");
  Stream &writing = stream(sim, Role::copy_in), &copying = stream(sim, Role::compute);
  const MemoryPtr from = allocate(sim, sizeof(float)), to = allocate(sim, sizeof(float));
  const Event allocated = copying.record();
  writing.wait(allocated);
  const auto access = [](const MemoryPtr& memory, Mode mode) { return Access{memory.get(), 0, sizeof(float), mode}; };
  device::launch(writing, "write", {access(from, Mode::write)}, [](const Pointers& p) { *p.as<float>(0) = 1.0f; });
  if (waits) copying.wait(writing.record());
  device::launch(copying, "copy", {access(from, Mode::read), access(to, Mode::write)},
                 [](const Pointers& p) { *p.as<float>(1) = *p.as<const float>(0); });
  float value = 0.0f;
  read_to_host(&value, *to, 0, sizeof value);
  synchronize_all();
  return value;
}

// One stream reads a block that the host frees. The stream that allocated the block gets it back.
float copy_of_released(bool waits) {
  using namespace device;
  const Device sim = device_from_name("sim");
  Stream &owning = stream(sim, Role::compute), &copying = stream(sim, Role::copy_in);
  MemoryPtr from = allocate(sim, sizeof(float));
  const MemoryPtr to = allocate(sim, sizeof(float));
  const auto access = [](const MemoryPtr& memory, Mode mode) { return Access{memory.get(), 0, sizeof(float), mode}; };
  device::launch(owning, "write", {access(from, Mode::write)}, [](const Pointers& p) { *p.as<float>(0) = 1.0f; });
  copying.wait(owning.record());
  device::launch(copying, "copy", {access(from, Mode::read), access(to, Mode::write)},
                 [](const Pointers& p) { *p.as<float>(1) = *p.as<const float>(0); });
  const Event copied = copying.record();
  if (waits) owning.wait(copied);
  from.reset();
  owning.wait(copied);
  float value = 0.0f;
  read_to_host(&value, *to, 0, sizeof value);
  synchronize_all();
  return value;
}

// The number of schedules out of `all` in which some rank reads something else than 1 or fails.
std::int64_t num_failing(float (*read)(bool waits), bool waits, const std::string& request, std::int64_t all) {
  ScheduleSearch search(request_from_text(request), all);
  LaunchOptions options = scheduled(2, {});
  std::int64_t failing = 0;
  while (const auto spec = search.next()) {
    options.schedule->spec = *spec;
    const LaunchResult result = launch(options, [&](int rank) {
      verdict::RankOutcome outcome = fine(rank);
      outcome.evidence.comparisons = read(waits) == 1.0f ? 1 : 0;
      comm::exchange(comm::world_group(), "");
      return outcome;
    });
    bool fails = false;
    for (const verdict::RankOutcome& each : result.outcomes)
      fails = fails || each.status != verdict::RankStatus::finished || each.evidence.comparisons != 1;
    failing += fails ? 1 : 0;
    search.ran(options.schedule->record());
  }
  return failing;
}

// The rank ends while one of its streams waits for a launch of another one that has not run.
TEST(ScheduledRanks, EndWithStreamsThatWaitForEachOther) {
  ScheduleSearch search(request_from_text("exhaustive:200"), 200);
  LaunchOptions options = scheduled(1, {});
  while (const auto spec = search.next()) {
    options.schedule->spec = *spec;
    const LaunchResult result = launch(options, [](int rank) {
      using namespace device;
      const Device sim = device_from_name("sim");
      Stream &first = stream(sim, Role::copy_in), &second = stream(sim, Role::copy_out);
      const auto nothing = [](const Pointers&) {};
      device::launch(first, "first", {}, nothing);
      second.wait(first.record());
      device::launch(second, "second", {}, nothing);
      return fine(rank);
    });
    EXPECT_EQ(result.outcomes.front().status, verdict::RankStatus::finished) << result.outcomes.front().detail;
    search.ran(options.schedule->record());
  }
}

TEST(ScheduledRanks, ShowAMissingWaitAndPassWithIt) {
  for (const char* request : {"random:1", "pct:2,1", "exhaustive:30"}) {
    EXPECT_GT(num_failing(copy_beside, false, request, 30), 0) << request;
    EXPECT_EQ(num_failing(copy_beside, true, request, 30), 0) << request;
  }
}

TEST(ScheduledRanks, ShowMemoryThatIsFreedWhileAStreamReadsIt) {
  EXPECT_GT(num_failing(copy_of_released, false, "random:1", 30), 0);
  EXPECT_EQ(num_failing(copy_of_released, true, "random:1", 30), 0);
}

TEST(ScheduledRanks, DecideTheSameAgain) {
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const LaunchOptions options = scheduled(3, {.kind = SchedulePolicy::random, .seed = seed});
    const auto run = [&] {
      launch(options, [](int rank) {
        copy_beside(true);
        comm::exchange(comm::world_group(), str(rank));
        return fine(rank);
      });
      EXPECT_GT(options.schedule->record().num_decisions, 20u);
      return options.schedule->record().digest;
    };
    const std::uint64_t digest = run();
    const std::vector<Switch> switches = options.schedule->record().switches();
    EXPECT_EQ(run(), digest) << "seed " << seed;
    options.schedule->spec = {.switches = switches};
    EXPECT_EQ(run(), digest) << "seed " << seed;
    digests.insert(digest);
  }
  EXPECT_GT(digests.size(), 1u);
}

}  // namespace
}  // namespace lockstep::launch
