// What every backend promises about launches, streams and events (backend_promises.hpp).
#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "engine/device/backend_promises.hpp"
#include "engine/device/order.hpp"
#include "engine/device/trace.hpp"

namespace lockstep::device {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Backends, BackendPromises, testing::ValuesIn(backends_of_this_build()),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

INSTANTIATE_TEST_SUITE_P(OnStandIn, BackendPromises, testing::Values(Kind::cuda),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST(BackendTable, HoldsEveryKindOfTheBuild) {
  EXPECT_THAT(backends_of_this_build(), testing::IsSupersetOf({Kind::cpu, Kind::sim, Kind::meta}));
  for (int i = 0; i < num_kinds; ++i) EXPECT_EQ(kind_from_name(name_of(static_cast<Kind>(i))), static_cast<Kind>(i));
}

// The names of tests in the table of promises in engine/README.md: `Name` in the last column.
std::set<std::string> tests_in_readme() {
  std::ifstream readme(LOCKSTEP_SOURCE_DIR "/engine/README.md");
  std::set<std::string> names;
  bool in_table = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("| promise of a backend")) in_table = true;
    if (in_table && !line.starts_with("|")) break;
    if (!in_table || line.starts_with("| promise") || line.starts_with("|--")) continue;
    const std::string tests = line.substr(line.find(" | "));
    for (std::size_t at = tests.find('`'); at != std::string::npos; at = tests.find('`', at + 1)) {
      const std::size_t end = tests.find('`', at + 1);
      names.insert(tests.substr(at + 1, end - at - 1));
      at = end;
    }
  }
  return names;
}

TEST(BackendTable, HasAPromiseForEachTest) {
  std::set<std::string> names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    if (suite.name() != std::string("Backends/BackendPromises")) continue;
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const std::string name = suite.GetTestInfo(k)->name();
      names.insert(name.substr(0, name.find('/')));
    }
  }
  EXPECT_GE(names.size(), 30U);
  EXPECT_EQ(names, tests_in_readme());
}

void nothing(const Pointers&) {}

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// ---- order
// Each copy of the chain needs the one before it.
TEST_P(BackendPromises, RunItemsInOrder) {
  Stream& compute = current_stream(device());
  const MemoryPtr a = block_with("first"), b = block_with("later"), c = block_with("empty");
  delay(compute, 2.0);
  for (int i = 0; i < 20; ++i) {  // rotates the three texts
    const MemoryPtr kept = allocate(device(), 5);
    copy(compute, kept, c);
    copy(compute, c, b);
    copy(compute, b, a);
    copy(compute, a, kept);
  }
  expect_text(a, "later");
  expect_text(b, "empty");
  expect_text(c, "first");
  std::string story;
  for (const char letter : std::string("abcdef"))
    launch(compute, "writes", {full_access(a, Mode::update)}, [&story, letter](const Pointers&) { story += letter; });
  compute.synchronize();
  EXPECT_EQ(story, can().computes ? "abcdef" : "");
}

TEST_P(BackendPromises, RunItemsBehindAnEventAfterIt) {
  Stream& compute = current_stream(device());
  Stream& side = stream(device(), Role::all_gather);
  for (int i = 0; i < 10; ++i) {
    const std::string text = str("text ", i);
    const MemoryPtr from = block_with(text), between = block_with("......"), to = block_with("......");
    side.wait(compute.record());
    delay(compute, 0.5);
    copy(compute, between, from);
    side.wait(compute.record());
    copy(side, to, between);
    compute.wait(side.record());
    expect_text(to, text);
  }
  EXPECT_TRUE(order_violations().empty()) << order_violations()[0].message;
}

TEST_P(BackendPromises, ShowAMissingEventToTheOrderCheck) {
  const MemoryPtr block = block_with("shared");
  launch(stream(device(), Role::copy_in), "writes", {full_access(block, Mode::write)}, nothing);
  launch(stream(device(), Role::copy_out), "reads", {full_access(block, Mode::read)}, nothing);
  synchronize_all();
  ASSERT_FALSE(order_violations().empty());
  EXPECT_THAT(order_violations()[0].message, HasSubstr("`reads`"));
}

TEST_P(BackendPromises, RunBothHalvesBeforeTheNextItem) {
  std::string story;
  Stream& side = stream(device(), Role::all_reduce);
  const MemoryPtr block = allocate(device(), 64);
  const auto tell = [&](const char* text) { return [&story, text](const Pointers&) { story += text; }; };
  const std::vector<Access> reads = {{block.get(), 0, 64, Mode::read}}, writes = {{block.get(), 32, 32, Mode::write}};
  launch_deferred(side, "collective", reads, tell("s1 "), tell("f1 "));
  launch_deferred(side, "collective", writes, tell("s2 "), tell("f2 "));
  launch(side, "next", {}, tell("n "));
  side.synchronize();
  EXPECT_EQ(story, can().computes ? "s1 f1 s2 f2 n " : "");
}
TEST_P(BackendPromises, RunSecondHalvesOnOtherMemoryInOrder) {
  std::string story;
  Stream& side = stream(device(), Role::all_reduce);
  const MemoryPtr block = allocate(device(), 64);
  const auto tell = [&](const char* text) { return [&story, text](const Pointers&) { story += text; }; };
  const std::vector<Access> lower = {{block.get(), 0, 32, Mode::write}}, upper = {{block.get(), 32, 32, Mode::write}};
  launch_deferred(side, "collective", lower, tell("s1 "), tell("f1 "));
  launch_deferred(side, "collective", upper, tell("s2 "), tell("f2 "));
  const Event second = side.record();
  launch_deferred(side, "collective", lower, tell("s3 "), tell("f3 "));
  second.synchronize();
  launch(side, "next", {}, tell("n "));
  side.synchronize();
  const std::string beside = side.runs_inline() ? "s1 s2 f1 s3 f2 f3 n " : "s1 f1 s2 f2 s3 f3 n ";
  EXPECT_EQ(story, can().computes ? beside : "");
}

// ---- waits
TEST_P(BackendPromises, ReturnFromAWaitWhenTheItemHasRun) {
  std::atomic<int> num_run = 0;
  Stream& side = stream(device(), Role::copy_in);
  const auto run_late = [&](const Pointers&) {
    sleep_ms(5);
    ++num_run;
  };
  launch(side, "late", {}, run_late);
  const Event first = side.record();
  first.synchronize();
  EXPECT_EQ(num_run, can().computes ? 1 : 0);
  launch_deferred(side, "late", {}, nothing, run_late);
  side.synchronize();
  EXPECT_EQ(num_run, can().computes ? 2 : 0);
}

TEST_P(BackendPromises, CompleteEmptyAndEarlyEvents) {
  Event().synchronize();
  Stream& compute = current_stream(device());
  const Event event = compute.record();
  EXPECT_TRUE(event.defined());
  event.synchronize();
  compute.wait(event);
  compute.wait(Event());
}

TEST_P(BackendPromises, StayBusyDuringADelay) {
  Stream& side = stream(device(), Role::copy_in);
  const double spent = milliseconds_of([&] {
    delay(side, 20.0);
    side.synchronize();
  });
  if (can().computes) {
    EXPECT_GE(spent, 19.0);
  } else {
    EXPECT_LT(spent, 19.0);
  }
}

// ---- failures
TEST_P(BackendPromises, RethrowAFailureUntilItIsCleared) {
  Stream& compute = current_stream(device());
  const Event before = stream(device(), Role::all_gather).record();
  const std::string message = message_of([&] {
    launch(compute, "fails", {}, [](const Pointers&) { throw Error("on purpose"); });
    compute.synchronize();
  });
  EXPECT_THAT(message, HasSubstr(can().computes ? "on purpose" : "nothing was thrown"));
  // Also where nothing is to be waited for. A stream that runs inline keeps no failure.
  const char* const kept = can().computes && !compute.runs_inline() ? "on purpose" : "nothing was thrown";
  EXPECT_THAT(message_of([&] { compute.wait(before); }), HasSubstr(kept));
  EXPECT_THAT(message_of([&] { compute.rethrow_failure(); }), HasSubstr(kept));
  clear_failures();
  EXPECT_NO_THROW(compute.rethrow_failure());
  bool ran = false;
  launch(compute, "runs", {}, [&](const Pointers&) { ran = true; });
  compute.synchronize();
  EXPECT_EQ(ran, can().computes);
}

TEST_P(BackendPromises, RethrowAFailureOfASecondHalf) {
  Stream& side = stream(device(), Role::all_reduce);
  launch_deferred(side, "collective", {}, nothing, [](const Pointers&) { throw Error("in the second half"); });
  EXPECT_THAT(message_of([&] { side.synchronize(); }),
              HasSubstr(can().computes ? "in the second half" : "nothing was thrown"));
}

// The second launch waits behind the first: its second half inline, the whole of it on a worker.
TEST_P(BackendPromises, DropWhatHasNotRunAtTheEndOfTheRank) {
  std::atomic<int> num_started = 0, num_dropped_that_ran = 0;
  {
    OneRank ending;
    Stream& side = stream(device(), Role::all_gather);
    const auto start = [&](const Pointers&) {
      ++num_started;
      sleep_ms(200);
    };
    launch_deferred(side, "runs", {}, start, nothing);
    launch_deferred(side, "is dropped", {}, nothing, [&](const Pointers&) { ++num_dropped_that_ran; });
    while (can().computes && num_started == 0) sleep_ms(1);
  }
  EXPECT_EQ(num_started, can().computes ? 1 : 0);
  EXPECT_EQ(num_dropped_that_ran, 0);
}

// ---- launches
TEST_P(BackendPromises, PassPointersInOrderOfAccesses) {
  const MemoryPtr memory = allocate(device(), 4096);
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < 12; ++i) accesses.push_back({memory.get(), i * 64, i == 5 ? 0u : 64u, Mode::write});
  bool ran = false;
  launch(current_stream(device()), "many", std::span<const Access>(accesses), [&](const Pointers& p) {
    ran = true;
    ASSERT_EQ(p.size(), 12u);
    for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(p.at(i), i == 5 ? nullptr : p.at(0) + i * 64);
  });
  synchronize_all();
  EXPECT_EQ(ran, can().computes);
}

TEST_P(BackendPromises, HandTheExecutionOfTheStreamToBodies) {
  const MemoryPtr memory = allocate(device(), 64);
  Stream& compute = current_stream(device());
  EXPECT_TRUE((compute.execution().space == Space::host) == can().runs_on_host || !can().computes);
  std::atomic<int> seen = 0;
  const auto look = [&seen, expected = compute.execution()](const Pointers& p) {
    if (p.execution().space == expected.space && p.execution().stream == expected.stream) ++seen;
  };
  launch(compute, "look", {full_access(memory, Mode::read)}, look);
  launch_deferred(compute, "halves", std::vector<Access>{full_access(memory, Mode::read)}, look, look);
  compute.synchronize();
  EXPECT_EQ(seen, can().computes ? 3 : 0);
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

TEST_P(BackendPromises, RejectRangesOutsideTheBlock) {
  const MemoryPtr memory = allocate(device(), 100);
  memory->label = "fc1.weight";
  struct Range {
    std::size_t offset, bytes;
  };
  for (const Range range : {Range{0, 101}, Range{100, 1}, Range{200, 1}, Range{1, ~std::size_t{0}}}) {
    const std::string message = message_of([&] {
      launch(current_stream(device()), "far", {Access{memory.get(), range.offset, range.bytes, Mode::read}}, nothing);
    });
    EXPECT_THAT(message, HasSubstr("`far`"));
    EXPECT_THAT(message, HasSubstr("fc1.weight"));
    EXPECT_THAT(message, HasSubstr("block of 100 bytes"));
  }
}

TEST_P(BackendPromises, RejectOperandsOfAnotherDevice) {
  const MemoryPtr memory = allocate(device(), 100);
  memory->label = "fc1.weight";
  const Device other{can().host_can_touch ? Kind::sim : Kind::cpu, 0};
  const std::string message =
      message_of([&] { launch(current_stream(other), "add", {full_access(memory, Mode::read)}, nothing); });
  EXPECT_THAT(message, HasSubstr("`add` on " + to_text(other)));
  EXPECT_THAT(message, HasSubstr("fc1.weight"));
  EXPECT_THAT(message, HasSubstr(to_text(device())));
}

TEST_P(BackendPromises, ShowLaunchesInATrace) {
  start_trace({});
  launch(current_stream(device()), "seen", {}, nothing);
  launch_deferred(stream(device(), Role::all_reduce), "in halves", {}, nothing, nothing);
  synchronize_all();
  const Trace seen = trace();
  ASSERT_EQ(seen.launches.size(), 2U);
  EXPECT_STREQ(seen.launches[0].name, "seen");
  EXPECT_STREQ(seen.launches[1].name, "in halves");
  for (const TracedLaunch& one : seen.launches) EXPECT_EQ(one.begin_ns > 0 && one.end_ns > 0, can().computes);
}

}  // namespace
}  // namespace lockstep::device
