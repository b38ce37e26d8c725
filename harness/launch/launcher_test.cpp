#include "harness/launch/launcher.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/protection.hpp"
#include "engine/tensor/tensor.hpp"
#include "harness/launch/test_support.hpp"

namespace lockstep::launch {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;
using verdict::RankOutcome;
using verdict::RankStatus;

class EachLaunch : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Launch, EachLaunch, ::testing::Values(Launch::process, Launch::thread),
                         [](const auto& of) { return of.param == Launch::process ? "process" : "thread"; });

TEST_P(EachLaunch, ReturnsTheOutcomeOfEveryRank) {
  const LaunchResult result = launch(options_for(4, GetParam()), [](int rank) {
    LOCKSTEP_CHECK(RankContext::current().rank() == rank && RankContext::current().world_size() == 4);
    const std::vector<std::string> all = comm::exchange(comm::world_group(), str("rank ", rank));
    RankOutcome outcome = fine(rank);
    for (const std::string& each : all) outcome.checks_reached.push_back(each);
    return outcome;
  });
  ASSERT_EQ(result.outcomes.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const RankOutcome& outcome = result.outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.rank, rank);
    EXPECT_EQ(outcome.status, RankStatus::finished);
    EXPECT_EQ(outcome.evidence.comparisons, 10 + rank);
    EXPECT_THAT(outcome.checks_reached, ::testing::ElementsAre("rank 0", "rank 1", "rank 2", "rank 3"));
    EXPECT_TRUE(result.stories[static_cast<std::size_t>(rank)].ended);
    ASSERT_EQ(result.stories[static_cast<std::size_t>(rank)].collectives.size(), 1u);
  }
  EXPECT_FALSE(has_children());
}

// Makes a fork take longer than the deadline of a collective: the second child sleeps before it runs its rank.
int forks_to_delayed_child = 0;

TEST(Launcher, DoesNotCountTheLaunchAgainstACollective) {
  pthread_atfork([] { --forks_to_delayed_child; }, nullptr,
                 [] {
                   if (forks_to_delayed_child == 0) std::this_thread::sleep_for(std::chrono::milliseconds(800));
                 });
  forks_to_delayed_child = 2;
  LaunchOptions options = options_for(3, Launch::process);
  options.collective_deadline_seconds = 0.2;
  const LaunchResult result = launch(options, [](int rank) {
    comm::barrier(comm::world_group());
    return fine(rank);
  });
  for (const RankOutcome& outcome : result.outcomes) EXPECT_EQ(outcome.status, RankStatus::finished) << outcome.detail;
  EXPECT_GT(result.seconds, 0.7);
}

TEST_P(EachLaunch, ReturnsLargeOutcomes) {
  const std::string large(3'000'000, 'x');
  const LaunchResult result = launch(options_for(3, GetParam()), [&](int rank) {
    RankOutcome outcome = fine(rank);
    outcome.records.emplace_back("text", str("\"", large, rank, "\""));
    return outcome;
  });
  for (int rank = 0; rank < 3; ++rank) {
    const RankOutcome& outcome = result.outcomes[static_cast<std::size_t>(rank)];
    ASSERT_EQ(outcome.records.size(), 1u);
    EXPECT_EQ(outcome.records[0].second, str("\"", large, rank, "\""));
  }
}

TEST_P(EachLaunch, TurnsAnEscapedExceptionIntoAFailure) {
  const LaunchResult result = launch(options_for(2, GetParam()), [](int rank) {
    if (rank == 1) throw std::runtime_error("out of thin air");
    comm::barrier(comm::world_group());
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[1].status, RankStatus::failed);
  ASSERT_EQ(result.outcomes[1].failures.size(), 1u);
  EXPECT_EQ(result.outcomes[1].failures[0].message, "out of thin air");
  EXPECT_FALSE(result.outcomes[1].failures[0].secondary);
  EXPECT_EQ(result.outcomes[0].status, RankStatus::failed);
  ASSERT_EQ(result.outcomes[0].failures.size(), 1u);
  EXPECT_THAT(result.outcomes[0].failures[0].message, HasSubstr("rank 1 failed: out of thin air"));
  EXPECT_TRUE(result.outcomes[0].failures[0].secondary);
  EXPECT_LT(result.seconds, 2.0);
  EXPECT_TRUE(result.stories[1].failed);
}

TEST_P(EachLaunch, ReportsAnUnsupportedFeature) {
  const LaunchResult result =
      launch(options_for(1, GetParam()), [](int) -> RankOutcome { throw UnsupportedError("no such device here"); });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::unsupported);
  EXPECT_THAT(result.outcomes[0].detail, HasSubstr("no such device here"));
}

TEST_P(EachLaunch, KillsHungRanksAndReportsTheirSteps) {
  LaunchOptions options = options_for(2, GetParam());
  options.timeout_seconds = 0.3;
  options.collective_deadline_seconds = 100;
  const LaunchResult result = launch(options, [](int rank) {
    comm::record_location(rank == 0 ? "barrier" : "delay", "a.yaml", 7 + rank, 3);
    if (rank == 0) comm::barrier(comm::world_group());
    for (;;) pause();
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::hung);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::hung);
  EXPECT_EQ(result.outcomes[1].last_step.step, "delay");
  EXPECT_EQ(result.outcomes[1].last_step.line, 8);
  EXPECT_EQ(result.outcomes[1].last_step.column, 3);
  // Rank 0 still reported that it was aborted in its barrier.
  ASSERT_EQ(result.outcomes[0].failures.size(), 1u);
  EXPECT_THAT(result.outcomes[0].failures[0].message, HasSubstr("the case ran out of its 0.3 s"));
  // Rank 1 is the cause.
  EXPECT_TRUE(result.outcomes[0].bystander);
  EXPECT_FALSE(result.outcomes[1].bystander);
  EXPECT_THAT(result.outcomes[1].detail, HasSubstr("rank 0 waits for it in barrier"));
  EXPECT_EQ(result.stories[1].why, "ended by the harness after the time-out of 0.3 s");
  EXPECT_LT(result.seconds, 3.0);
  EXPECT_FALSE(has_children());
}

// Of a rank: its end waits for ever.
struct NeverEnds {
  explicit NeverEnds(RankContext&) {}
  ~NeverEnds() {
    for (;;) pause();
  }
};

TEST_P(EachLaunch, ReportsRanksThatHangAtTheirEnd) {
  LaunchOptions options = options_for(2, GetParam());
  options.timeout_seconds = 0.5;
  const LaunchResult result = launch(options, [](int rank) {
    if (rank == 1) static_cast<void>(RankContext::current().service<NeverEnds>());
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[1].status, RankStatus::hung);
  EXPECT_EQ(result.outcomes[1].detail, "after it had handed in its outcome");
  EXPECT_EQ(result.outcomes[1].evidence.comparisons, 11);
  if (GetParam() == Launch::process) {
    EXPECT_EQ(result.outcomes[0].status, RankStatus::finished);
  }
  EXPECT_FALSE(has_children());
}

// A rank may wait at its end for a peer that hangs, and keeps its outcome.
TEST(Launcher, KeepsTheOutcomesOfRanksWhosePeerHangs) {
  LaunchOptions options = options_for(2, Launch::process);
  options.timeout_seconds = 0.5;
  const LaunchResult result = launch(options, [](int rank) {
    if (rank == 1)
      for (;;) pause();
    static_cast<void>(RankContext::current().service<NeverEnds>());
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::finished);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::hung);
}

TEST(Launcher, StartsNoMoreRanksAfterTheTimeOut) {
  LaunchOptions options = options_for(40, Launch::process);
  options.timeout_seconds = 1e-6;
  const LaunchResult result = launch(options, [](int rank) {
    for (;;) pause();
    return fine(rank);
  });
  for (const RankOutcome& outcome : result.outcomes) {
    EXPECT_EQ(outcome.status, RankStatus::hung) << outcome.rank;
    if (outcome.rank > 0) {
      EXPECT_EQ(outcome.detail, "the case ran out of its 1e-06 s before this rank was started") << outcome.rank;
    }
  }
  EXPECT_FALSE(has_children());
}

TEST(Launcher, NamesTheSignalOfACrashAndFreesThePeers) {
  const LaunchResult result = launch(options_for(3, Launch::process), [](int rank) {
    comm::record_location("forward", "b.yaml", 12, 5);
    comm::barrier(comm::world_group());
    if (rank == 2) crash();
    comm::barrier(comm::world_group());
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[2].status, RankStatus::killed);
  EXPECT_EQ(result.outcomes[2].signal, SIGSEGV);
  EXPECT_FALSE(result.outcomes[2].end_expected);
  EXPECT_EQ(result.outcomes[2].last_step.step, "forward");
  EXPECT_EQ(result.outcomes[2].last_step.file, "b.yaml");
  EXPECT_THAT(result.outcomes[2].detail, HasSubstr("after barrier"));
  for (int rank : {0, 1}) {
    ASSERT_EQ(result.outcomes[static_cast<std::size_t>(rank)].failures.size(), 1u);
    EXPECT_THAT(result.outcomes[static_cast<std::size_t>(rank)].failures[0].message,
                HasSubstr("rank 2 died: ended by signal 11 (SIGSEGV)"));
  }
  EXPECT_LT(result.seconds, 1.0);
  EXPECT_TRUE(result.stories[2].died);
}

TEST(Launcher, NamesTheThreadThatCrashed) {
  const LaunchResult result = launch(options_for(3, Launch::thread), [](int rank) {
    if (rank == 1) crash();
    comm::barrier(comm::world_group());
    return fine(rank);
  });
  for (const RankOutcome& outcome : result.outcomes) {
    EXPECT_EQ(outcome.status, RankStatus::killed);
    EXPECT_EQ(outcome.signal, SIGSEGV);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  for (int rank : {0, 2}) {
    const RankOutcome& outcome = result.outcomes[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(outcome.bystander);
    EXPECT_THAT(outcome.detail, HasSubstr("rank 1, a thread of the same process, crashed"));
  }
  EXPECT_FALSE(result.outcomes[1].bystander);
  EXPECT_EQ(result.stories[1].why, "ended by signal 11 (SIGSEGV)");
#endif
}

TEST(Launcher, SaysWhatAHostAccessOfDeviceMemoryTouched) {
  if (device::protection() == device::Protection::off) GTEST_SKIP() << "this processor has no protection keys";
  for (const Launch how : {Launch::process, Launch::thread}) {
    const LaunchResult result = launch(options_for(2, how), [](int rank) {
      const Tensor weight = full({4}, 1.0, DType::float32, device::Device{device::Kind::sim, rank});
      weight.storage()->memory().label = "fc1.weight";
      float* address = nullptr;
      device::launch(device::current_stream(weight.device()), "leaks its pointer", {write(weight)},
                     [&](const device::Pointers& p) { address = p.as<float>(0); });
      comm::barrier(comm::world_group());
      if (rank == 1) address[2] = 5.0F;
      comm::barrier(comm::world_group());
      return fine(rank);
    });
    EXPECT_EQ(result.outcomes[1].status, RankStatus::killed);
    EXPECT_THAT(result.stories[1].why,
                HasSubstr("host code touched byte 8 of fc1.weight (activation) on sim:1 outside a "
                          "launch; ended by signal 11 (SIGSEGV)"));
    if (how == Launch::process) {
      EXPECT_THAT(result.outcomes[1].detail, HasSubstr("host code touched byte 8 of fc1.weight"));
      EXPECT_THAT(result.outcomes[0].failures.at(0).message, HasSubstr("host code touched byte 8 of fc1.weight"));
    }
  }
}

TEST(Launcher, BlamesNoThreadForASignalFromOutside) {
  const LaunchResult result = launch(options_for(2, Launch::thread), [](int rank) {
    if (rank == 1) ::kill(::getpid(), SIGTERM);
    for (;;) ::pause();
    return fine(rank);
  });
  for (const RankOutcome& outcome : result.outcomes) {
    EXPECT_EQ(outcome.signal, SIGTERM);
    EXPECT_FALSE(outcome.bystander);
  }
}

TEST(Launcher, LetsNoRankEndTheOthers) {
  const LaunchResult result = launch(options_for(2, Launch::process), [](int rank) {
    if (rank == 1) Pool::end_ranks_of_process();
    comm::barrier(comm::world_group());
    return fine(rank);
  });
  for (const RankOutcome& outcome : result.outcomes) EXPECT_EQ(outcome.status, RankStatus::finished) << outcome.detail;
}

TEST(Launcher, ReportsAnExitWithoutAnOutcome) {
  const LaunchResult result = launch(options_for(2, Launch::process), [](int rank) {
    if (rank == 0) _exit(9);
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::exited);
  EXPECT_EQ(result.outcomes[0].exit_code, 9);
  EXPECT_FALSE(result.outcomes[0].end_expected);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::finished);
}

TEST(Launcher, AcceptsAKillThatTheRankAnnounced) {
  const LaunchResult result = launch(options_for(2, Launch::process), [](int rank) {
    RankOutcome outcome = fine(rank);
    if (rank == 1) exit_rank_by_kill(outcome);
    try {
      comm::barrier(comm::world_group());
    } catch (const comm::PeerEndedError& error) {
      outcome.detail = error.message();
    }
    return outcome;
  });
  EXPECT_EQ(result.outcomes[1].status, RankStatus::killed);
  EXPECT_EQ(result.outcomes[1].signal, SIGKILL);
  EXPECT_TRUE(result.outcomes[1].end_expected);
  EXPECT_EQ(result.outcomes[1].evidence.comparisons, 11);
  EXPECT_EQ(result.outcomes[0].status, RankStatus::finished);
  EXPECT_THAT(result.outcomes[0].detail, HasSubstr("rank 1 died: ended by signal 9 (SIGKILL)"));
}

TEST(Launcher, RefusesToKillAThread) {
  const LaunchResult result = launch(options_for(1, Launch::thread), [](int) -> RankOutcome { exit_rank_by_kill(); });
  ASSERT_EQ(result.outcomes[0].failures.size(), 1u);
  EXPECT_THAT(result.outcomes[0].failures[0].message, HasSubstr("launch the ranks as processes"));
}

TEST(Launcher, GivesRanksAnEmptyInputAndRemovesTheirFolder) {
  const std::string folder = str(::testing::TempDir(), "lockstep_launcher_test_", getpid());
  LaunchOptions options = options_for(2, Launch::process);
  options.folder = folder;
  const LaunchResult result = launch(options, [&](int rank) {
    RankOutcome outcome = fine(rank);
    char byte;
    LOCKSTEP_CHECK(::read(STDIN_FILENO, &byte, 1) == 0, "input was not empty");
    std::ofstream(str(folder, "/rank", rank)) << "left over";
    LOCKSTEP_CHECK(std::filesystem::exists(str(folder, "/rank", rank)));
    return outcome;
  });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::finished);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::finished);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(Launcher, KillsProcessesThatARankStarted) {
  const LaunchResult result = launch(options_for(1, Launch::process), [&](int rank) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    RankOutcome outcome = fine(rank);
    outcome.exit_code = child;
    return outcome;
  });
  ASSERT_GT(result.outcomes[0].exit_code, 0);
  // A killed orphan disappears when the process that inherits it has waited for it.
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    gone = !is_alive(result.outcomes[0].exit_code);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(gone);
}

TEST(Launcher, LeavesNothingBehindAfterManyCases) {
  launch(options_for(2, Launch::process), fine);
  const int files = num_open_files();
  for (int i = 0; i < 200; ++i) {
    const Launch kind = i % 2 == 0 ? Launch::process : Launch::thread;
    const LaunchResult result = launch(options_for(2, kind), [i](int rank) -> RankOutcome {
      if (i % 10 == 4 && rank == 1) crash();
      if (i % 10 == 6 && rank == 0) throw Error("once in a while");
      return fine(rank);
    });
    ASSERT_EQ(result.outcomes.size(), 2u);
  }
  EXPECT_EQ(num_open_files(), files);
  EXPECT_FALSE(has_children());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find("lockstep-world"), std::string::npos) << line;
}

}  // namespace
}  // namespace lockstep::launch
