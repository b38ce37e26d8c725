#include "harness/cli/watched.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "harness/scenario/evaluation.hpp"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr WatchLimits small{.cpu_seconds = 0.3, .seconds = 0.6, .heap_mb = 256};

[[noreturn]] void spin() {
  for (std::atomic<int> turns = 0;;) ++turns;
}

std::string complaint_about(const std::function<void()>& work) {
  try {
    try_in_child(work, small);
  } catch (const Error& error) {
    return error.message();
  }
  return "none";
}

TEST(Watched, AcceptsWorkThatEnds) {
  EXPECT_EQ(complaint_about([] {}), "none");
  EXPECT_EQ(complaint_about([] { throw Error("the caller repeats this"); }), "none");
}

TEST(Watched, KillsWorkThatSpinsAndNamesTheLine) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = complaint_about([] {
    const scenario::Evaluation evaluation("mine.yaml", "the reading");
    scenario::note_line(7, 3);
    spin();
  });
  EXPECT_THAT(message, StartsWith("mine.yaml:7:3: evaluating it took longer"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Watched, KillsWorkThatWaits) {
  const std::string message = complaint_about([] {
    const scenario::Evaluation evaluation("mine.yaml", "the reading");
    std::this_thread::sleep_for(std::chrono::seconds(100));
  });
  EXPECT_THAT(message, StartsWith("mine.yaml: evaluating it took longer"));
}

TEST(Watched, GivesEachFileItsOwnTime) {
  EXPECT_EQ(complaint_about([] {
              for (int file = 0; file < 4; ++file) {
                const scenario::Evaluation evaluation("mine.yaml", "the reading");
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
              }
            }),
            "none");
}

// Together they take more than one file may.
TEST(Watched, GivesEachFileItsOwnProcessorTime) {
  EXPECT_EQ(complaint_about([] {
              for (int file = 0; file < 5; ++file) {
                const scenario::Evaluation evaluation("mine.yaml", "the reading");
                const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
                while (std::chrono::steady_clock::now() < end) continue;
              }
            }),
            "none");
}

TEST(Watched, NamesTheFileThatCrashed) {
  EXPECT_EQ(complaint_about([] {
              const scenario::Evaluation evaluation("mine.yaml", "the reading");
              ::raise(SIGSEGV);
            }),
            "mine.yaml: evaluating it ended by SIGSEGV");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Watched, EndsWorkThatTakesTooMuchMemory) {
  const std::string message = complaint_about([] {
    const scenario::Evaluation evaluation("mine.yaml", "the reading");
    scenario::note_line(2, 1);
    std::vector<std::vector<char>> all;  // without a write to the memory, which would take time
    for (;;) all.emplace_back().reserve(1 << 24);
  });
  EXPECT_EQ(message, "mine.yaml:2:1: evaluating it takes more than 256 MiB of memory");
}
#endif

TEST(Watched, LeavesNoProcessBehind) {
  complaint_about([] { ::pause(); });
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(Watched, ReturnsTheCodeOfTheCommandInBothProcesses) {
  const pid_t test = ::getpid();
  const int code = in_watched_child([] { return 5; }, small);
  if (::getpid() != test) ::_exit(code);
  EXPECT_EQ(code, 5);
  EXPECT_EQ(in_watched_child([]() -> int { spin(); }, small), 2);
}

}  // namespace
}  // namespace lockstep::cli
