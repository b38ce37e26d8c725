#include "harness/launch/launcher.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "harness/launch/environment.hpp"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;
using verdict::RankOutcome;
using verdict::RankStatus;

RankOutcome fine(int rank) {
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.evidence.comparisons = 10 + rank;
  return outcome;
}

LaunchOptions options_for(int world_size, Launch launch) {
  LaunchOptions options;
  options.world_size = world_size;
  options.launch = launch;
  options.timeout_seconds = 20;
  return options;
}

int num_open_files() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

bool has_children() { return waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

// "R", "S", "T" (stopped), "Z", ...; empty when there is no such process.
std::string state_of(pid_t pid) {
  std::ifstream stat(str("/proc/", pid, "/stat"));
  std::string number, name, state;
  stat >> number >> name >> state;
  return state;
}

bool is_alive(pid_t pid) {
  const std::string state = state_of(pid);
  return !state.empty() && state != "Z" && state != "X";
}

[[noreturn]] void crash() {
  raise(SIGSEGV);
  std::abort();
}

class EachLaunch : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Launch, EachLaunch, ::testing::Values(Launch::process, Launch::thread),
                         [](const auto& of) { return of.param == Launch::process ? "process" : "thread"; });

TEST_P(EachLaunch, BringsEveryRanksOutcome) {
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

// A fork that takes longer than a collective may: the second child sleeps before it comes to its rank.
int forks_to_delayed_child = 0;

TEST(Launcher, LaunchTimeDoesNotCountAgainstACollective) {
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

TEST_P(EachLaunch, LetsLargeOutcomesThrough) {
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

TEST_P(EachLaunch, TellsWhatIsUnsupportedApart) {
  const LaunchResult result =
      launch(options_for(1, GetParam()), [](int) -> RankOutcome { throw UnsupportedError("no such device here"); });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::unsupported);
  EXPECT_THAT(result.outcomes[0].detail, HasSubstr("no such device here"));
}

TEST_P(EachLaunch, EndsWhatHangsAndSaysWhere) {
  LaunchOptions options = options_for(2, GetParam());
  options.timeout_seconds = 0.3;
  options.collective_deadline_seconds = 100;
  const LaunchResult result = launch(options, [](int rank) {
    comm::note_place(rank == 0 ? "barrier" : "delay", "a.yaml", 7 + rank, 3);
    if (rank == 0) comm::barrier(comm::world_group());
    for (;;) pause();
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::hung);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::hung);
  EXPECT_EQ(result.outcomes[1].last_step.step, "delay");
  EXPECT_EQ(result.outcomes[1].last_step.line, 8);
  // Rank 0 could still tell that it was ended in its barrier.
  ASSERT_EQ(result.outcomes[0].failures.size(), 1u);
  EXPECT_THAT(result.outcomes[0].failures[0].message, HasSubstr("the case ran out of its 0.3 s"));
  // Rank 1 is the one to look at.
  EXPECT_TRUE(result.outcomes[0].bystander);
  EXPECT_FALSE(result.outcomes[1].bystander);
  EXPECT_THAT(result.outcomes[1].detail, HasSubstr("rank 0 waits for it in barrier"));
  EXPECT_EQ(result.stories[1].why, "ended by the harness after the time-out of 0.3 s");
  EXPECT_LT(result.seconds, 3.0);
  EXPECT_FALSE(has_children());
}

TEST(Launcher, NamesTheSignalOfACrashAndFreesThePeers) {
  const LaunchResult result = launch(options_for(3, Launch::process), [](int rank) {
    comm::note_place("forward", "b.yaml", 12, 5);
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

TEST(Launcher, TellsAnExitWithoutAnOutcome) {
  const LaunchResult result = launch(options_for(2, Launch::process), [](int rank) {
    if (rank == 0) _exit(9);
    return fine(rank);
  });
  EXPECT_EQ(result.outcomes[0].status, RankStatus::exited);
  EXPECT_EQ(result.outcomes[0].exit_code, 9);
  EXPECT_FALSE(result.outcomes[0].end_expected);
  EXPECT_EQ(result.outcomes[1].status, RankStatus::finished);
}

TEST(Launcher, ExpectsAKillThatTheRankAnnounced) {
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

TEST(Launcher, GivesRanksAnEmptyInputAndTakesTheirFolderAway) {
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

TEST(Launcher, EndsWhatARankStarted) {
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
  // An orphan ended by a signal vanishes as soon as it is collected by whoever inherits it.
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

TEST(Pool, RunsCasesSideBySide) {
  Pool pool(3);
  for (int ticket = 0; ticket < 3; ++ticket) {
    EXPECT_FALSE(pool.full());
    pool.start(ticket, options_for(2, ticket == 1 ? Launch::thread : Launch::process), [ticket](int rank) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      RankOutcome outcome = fine(rank);
      outcome.exit_code = ticket;
      return outcome;
    });
  }
  EXPECT_TRUE(pool.full());
  std::vector<int> tickets;
  while (pool.num_running() > 0) {
    const Pool::Finished finished = pool.next();
    tickets.push_back(finished.ticket);
    EXPECT_EQ(finished.result.outcomes[1].exit_code, finished.ticket);
  }
  std::sort(tickets.begin(), tickets.end());
  EXPECT_EQ(tickets, (std::vector<int>{0, 1, 2}));
}

TEST(Pool, EndsEverythingOnInterrupt) {
  {
    Pool pool(2);
    pool.start(5, options_for(2, Launch::process), [](int rank) {
      if (rank == 0) return fine(rank);
      for (;;) pause();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    pool.kill_all();
    const Pool::Finished finished = pool.next();
    EXPECT_EQ(finished.ticket, 5);
    EXPECT_EQ(finished.result.outcomes[0].status, RankStatus::finished);
    EXPECT_EQ(finished.result.outcomes[1].status, RankStatus::killed);
    EXPECT_EQ(finished.result.outcomes[1].detail, "interrupted");
  }
  EXPECT_FALSE(has_children());
}

// While `worst_moment` is set, a child of fork() stops before its first own instruction, and its parent is killed
// before fork() returns.
int* stopped_child = nullptr;  // its process id, in shared memory
bool worst_moment = false;
void stop_child() {
  if (!worst_moment) return;
  *stopped_child = ::getpid();
  ::raise(SIGSTOP);
}
void kill_parent() {
  if (!worst_moment) return;
  while (*stopped_child == 0 || state_of(*stopped_child) != "T") ::usleep(1000);
  ::kill(::getpid(), SIGKILL);
}

TEST(Pool, LeavesNoRankBehindThatIsStoppedBeforeItsDeathSignal) {
  stopped_child =
      static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(stopped_child), MAP_FAILED);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::setsid();  // in a session of its own no terminal's rules end a stopped process
    Pool pool(1);
    ::pthread_atfork(nullptr, kill_parent, stop_child);
    worst_moment = true;
    pool.start(0, options_for(1, Launch::process), fine);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(launcher, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const pid_t rank = *stopped_child;
  ASSERT_GT(rank, 0);
  bool gone = false;
  for (int i = 0; i < 1000 && !gone; ++i) {
    gone = !is_alive(rank);
    ::usleep(5000);
  }
  EXPECT_TRUE(gone);
  ::kill(rank, SIGKILL);
  ::munmap(stopped_child, sizeof(int));
}

TEST(Environment, RecognisesLaunchers) {
  const auto from = [](std::vector<std::pair<std::string, std::string>> variables) {
    return recognise_environment([variables](const char* name) -> const char* {
      for (const auto& [key, value] : variables)
        if (key == name) return value.c_str();
      return nullptr;
    });
  };
  EXPECT_EQ(describe(from({})), "none");
  EXPECT_EQ(describe(from({{"RANK", "1"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"MASTER_ADDR", "node0"},
                           {"MASTER_PORT", "29500"}})),
            "torchrun: rank 1 of 4 (local rank 1), meeting at node0:29500");
  EXPECT_EQ(describe(from({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})), "mpirun: rank 0 of 2");
  EXPECT_EQ(describe(from({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}})),
            "srun: rank 3 of 8 (local rank 1)");
  EXPECT_EQ(describe(from({{"RANK", "4"}, {"WORLD_SIZE", "4"}})), "none");
  EXPECT_EQ(describe(from({{"RANK", "one"}, {"WORLD_SIZE", "4"}})), "none");
}

}  // namespace
}  // namespace lockstep::launch
