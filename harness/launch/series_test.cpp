#include "harness/launch/series.hpp"

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "harness/launch/test_support.hpp"

namespace lockstep::launch {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;
using verdict::RankOutcome;
using verdict::RankStatus;

// The worlds that this process has mapped.
int num_worlds() {
  std::set<std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::string range, rights, offset, device, file;
    std::istringstream(line) >> range >> rights >> offset >> device >> file;
    if (line.find("lockstep-world") != std::string::npos) files.insert(file);
  }
  return static_cast<int>(files.size());
}

// A rank performs the first word of the request. Its outcome holds the number of its process.
RankOutcome perform(const std::string& request, int rank) {
  std::istringstream words(request);
  std::string word;
  words >> word;
  RankOutcome outcome = fine(rank);
  outcome.exit_code = ::getpid();
  const bool is_last = rank == RankContext::current().world_size() - 1;
  if (word == "exchange") outcome.checks_reached = comm::exchange(comm::world_group(), str(request, " ", rank));
  if (word == "crash" && is_last) crash();
  if (word == "exit" && is_last) ::_exit(9);
  if (word == "fail" && is_last) throw Error("wrong");
  if (word == "unsupported") throw UnsupportedError("no such device here");
  if (word == "expect_error" && is_last) outcome.evidence.errors_expected = 1;
  if (word == "end_early" && is_last) outcome.end_expected = true;
  if (word == "hang" && is_last)
    for (;;) ::pause();
  if (word == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (word == "count" && rank == 0) outcome.evidence.elements = num_worlds() * 1000 + num_open_files();
  if (word == "keep" && is_last) static_cast<void>(new std::vector<char>(std::size_t{300} << 20));
  if (word == "limit") {
    rlimit limit{};
    ::getrlimit(RLIMIT_DATA, &limit);
    outcome.evidence.elements = static_cast<std::int64_t>(limit.rlim_cur >> 20);
  }
  return outcome;
}

RankFunction function_of(const std::string& request) {
  if (request == "unknown") throw Error("no such case");
  return [request](int rank) { return perform(request, rank); };
}

LaunchOptions threads(int world_size) { return options_for(world_size, Launch::thread); }

LaunchResult run(Pool& pool, const std::string& request, const LaunchOptions& options) {
  pool.start_in_series(0, options, request, function_of);
  return pool.next().result;
}
int process_of(const LaunchResult& result) { return result.outcomes.at(0).exit_code; }

TEST(Series, RunsCasesOfSeveralSizesInOneProcess) {
  Pool pool(1);
  std::set<int> processes;
  for (const int size : {2, 4, 1, 3}) {
    const LaunchResult result = run(pool, str("exchange ", size), threads(size));
    ASSERT_EQ(static_cast<int>(result.outcomes.size()), size);
    std::vector<std::string> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(str("exchange ", size, " ", rank));
    for (int rank = 0; rank < size; ++rank) {
      const RankOutcome& outcome = result.outcomes[static_cast<std::size_t>(rank)];
      EXPECT_EQ(outcome.rank, rank);
      EXPECT_EQ(outcome.status, RankStatus::finished) << outcome.detail;
      EXPECT_EQ(outcome.evidence.comparisons, 10 + rank);
      EXPECT_EQ(outcome.checks_reached, all);
      EXPECT_TRUE(result.stories[static_cast<std::size_t>(rank)].ended);
      EXPECT_EQ(result.stories[static_cast<std::size_t>(rank)].collectives.size(), 1u);
      processes.insert(outcome.exit_code);
    }
  }
  EXPECT_EQ(processes.size(), 1u);
  EXPECT_NE(*processes.begin(), ::getpid());
}

TEST(Series, RunsACaseAloneAfterOneThatDidNotEndWell) {
  struct Bad {
    const char* request;
    RankStatus status;
  };
  const std::vector<Bad> all = {
    {"crash", RankStatus::killed},
    {"exit", RankStatus::exited},
    {"fail", RankStatus::failed},
    {"unsupported", RankStatus::unsupported},
    {"hang", RankStatus::hung},
    {"sleep", RankStatus::hung},
    {"expect_error", RankStatus::finished},
    {"end_early", RankStatus::finished},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have a heap of their own
    {"keep", RankStatus::finished},
#endif
  };
  for (const Bad& bad : all) {
    Pool pool(1);
    LaunchOptions options = threads(2);
    const int first = process_of(run(pool, "nothing", options));
    if (bad.status == RankStatus::hung) options.timeout_seconds = 0.1;  // the ranks that sleep then still end well
    const LaunchResult middle = run(pool, bad.request, options);
    ASSERT_EQ(middle.outcomes.size(), 2u);
    EXPECT_EQ(middle.outcomes[1].status, bad.status) << bad.request;
    const LaunchResult last = run(pool, "exchange", threads(3));
    for (const RankOutcome& outcome : last.outcomes) {
      EXPECT_EQ(outcome.status, RankStatus::finished) << bad.request << ": " << outcome.detail;
      EXPECT_NE(outcome.exit_code, first) << bad.request;
    }
    EXPECT_EQ(process_of(run(pool, "nothing", threads(1))), process_of(last)) << bad.request;
  }
  EXPECT_FALSE(has_children());
}

TEST(Series, NamesTheCrashOfALaterCase) {
  Pool pool(1);
  run(pool, "exchange", threads(4));
  const LaunchResult result = run(pool, "crash", threads(3));
  for (const RankOutcome& outcome : result.outcomes) EXPECT_EQ(outcome.signal, SIGSEGV);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(result.stories[2].why, "ended by signal 11 (SIGSEGV)");
  EXPECT_TRUE(result.outcomes[0].bystander);
  EXPECT_FALSE(result.outcomes[2].bystander);
#endif
}

TEST(Series, EndsAtTheTimeOutOfTheCase) {
  Pool pool(1);
  run(pool, "nothing", threads(2));
  LaunchOptions options = threads(2);
  options.timeout_seconds = 0.3;
  const LaunchResult result = run(pool, "hang", options);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::hung);
  EXPECT_EQ(result.stories[1].why, "ended by the harness after the time-out of 0.3 s");
  EXPECT_LT(result.seconds, 3.0);
}

TEST(Series, HasAProcessPerCaseThatRuns) {
  Pool pool(2);
  std::set<int> processes;
  for (int i = 0; i < 3; ++i) {
    for (const int ticket : {0, 1}) pool.start_in_series(ticket, threads(2), "sleep", function_of);
    std::set<int> now;
    for (int ended = 0; ended < 2; ++ended) now.insert(process_of(pool.next().result));
    EXPECT_EQ(now.size(), 2u);
    processes.insert(now.begin(), now.end());
  }
  EXPECT_EQ(processes.size(), 2u);
}

TEST(Series, IsKilledOnInterrupt) {
  {
    Pool pool(2);
    for (const int ticket : {0, 1}) pool.start_in_series(ticket, threads(2), "sleep", function_of);
    for (int ended = 0; ended < 2; ++ended) pool.next();
    pool.start_in_series(7, threads(2), "hang", function_of);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Pool::Finished finished = pool.next([] { return true; });
    EXPECT_EQ(finished.ticket, 7);
    EXPECT_EQ(finished.result.outcomes[1].status, RankStatus::killed);
    EXPECT_EQ(finished.result.outcomes[1].detail, "interrupted");
  }
  EXPECT_FALSE(has_children());
}

TEST(Series, ReplacesAProcessThatDiedWhileItWasIdle) {
  Pool pool(1);
  const int first = process_of(run(pool, "nothing", threads(2)));
  ::kill(first, SIGKILL);
  while (is_alive(first)) ::usleep(1000);
  const LaunchResult result = run(pool, "exchange", threads(2));
  for (const RankOutcome& outcome : result.outcomes) EXPECT_EQ(outcome.status, RankStatus::finished) << outcome.detail;
  EXPECT_NE(process_of(result), first);
}

TEST(Series, SaysWhyACaseCannotStart) {
  Pool pool(1);
  run(pool, "nothing", threads(1));
  for (int i = 0; i < 2; ++i) {
    const LaunchResult result = run(pool, "unknown", threads(2));
    for (const RankOutcome& outcome : result.outcomes) {
      EXPECT_EQ(outcome.status, RankStatus::never_started);
      EXPECT_THAT(outcome.detail, HasSubstr("no such case"));
    }
  }
}

TEST(Series, SaysWhatTheMachineRefuses) {
  Pool pool(1);
  const int first = process_of(run(pool, "nothing", threads(1)));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  // Descriptors may be free below the highest one that is open. The limit of an earlier process is its own.
  for (none.rlim_cur = 3; none.rlim_cur < 40; ++none.rlim_cur) {
    ::setrlimit(RLIMIT_NOFILE, &none);
    pool.start_in_series(0, threads(2), "nothing", function_of);
    ::setrlimit(RLIMIT_NOFILE, &before);
    const LaunchResult result = pool.next().result;
    if (result.outcomes[0].status == RankStatus::finished) break;
    EXPECT_EQ(result.outcomes[0].status, RankStatus::never_started);
    EXPECT_THAT(result.outcomes[0].detail, HasSubstr("the limit on open files (ulimit -n) is"));
  }
  EXPECT_GT(none.rlim_cur, 3u);
  EXPECT_LT(none.rlim_cur, 40u);
  EXPECT_EQ(process_of(run(pool, "nothing", threads(1))), first);
}

TEST(Series, EndsBeforeACaseThatIsNotOfIt) {
  Pool pool(1);
  const int first = process_of(run(pool, "nothing", threads(2)));
  EXPECT_TRUE(is_alive(first));
  pool.start(0, threads(1), fine);
  EXPECT_FALSE(is_alive(first));
  pool.next();
}

// A process of the series holds nothing of the cases that ran beside it or before.
TEST(Series, KeepsNoMemoryAndNoFileOfACase) {
  const int files = num_open_files();
  {
    Pool pool(3);
    pool.start(0, options_for(2, Launch::process), [](int rank) { return perform("sleep", rank); });
    pool.start_in_series(1, threads(2), "sleep", function_of);
    pool.start_in_series(2, threads(2), "count", function_of);
    while (pool.num_running() > 0) {
      const Pool::Finished finished = pool.next();
      if (finished.ticket != 2) continue;
      const std::int64_t counted = finished.result.outcomes[0].evidence.elements;
      EXPECT_EQ(counted / 1000, 1);
      const LaunchResult again = run(pool, "count", threads(2));
      EXPECT_EQ(process_of(again), process_of(finished.result));
      EXPECT_EQ(again.outcomes[0].evidence.elements, counted);
      break;
    }
    EXPECT_EQ(num_worlds(), 2);  // of the cases that sleep
    while (pool.num_running() > 0) pool.next();
    EXPECT_EQ(num_worlds(), 0);
  }
  EXPECT_EQ(num_open_files(), files);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Series, SetsTheLimitOfEachCase) {
  Pool pool(1);
  LaunchOptions options = threads(1);
  std::vector<std::int64_t> mebibytes;
  for (const std::int64_t limit : {100, 5000, 100}) {
    options.memory_bytes = limit << 20;
    mebibytes.push_back(run(pool, "limit", options).outcomes[0].evidence.elements);
  }
  EXPECT_NEAR(static_cast<double>(mebibytes[1] - mebibytes[0]), 4900, 20);
  EXPECT_NEAR(static_cast<double>(mebibytes[2] - mebibytes[0]), 0, 20);
  options.memory_bytes = 0;
  rlimit own{};
  ::getrlimit(RLIMIT_DATA, &own);
  EXPECT_EQ(run(pool, "limit", options).outcomes[0].evidence.elements, static_cast<std::int64_t>(own.rlim_cur >> 20));
}
#endif

}  // namespace
}  // namespace lockstep::launch
