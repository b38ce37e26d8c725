#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/launch/launcher.hpp"
#include "harness/launch/test_support.hpp"

namespace lockstep::launch {
namespace {

using namespace testing_support;
using verdict::RankOutcome;
using verdict::RankStatus;

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

TEST(Pool, KillsEverythingOnInterrupt) {
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

// While `worst_moment` is set, a child of fork() stops before fork() returns in it, and its parent is killed before
// fork() returns there.
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

TEST(Pool, KillsARankThatIsStoppedBeforeItsDeathSignal) {
  stopped_child =
      static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(stopped_child), MAP_FAILED);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::setsid();  // in its own session, a stopped process is not ended by the rules of a terminal
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

}  // namespace
}  // namespace lockstep::launch
