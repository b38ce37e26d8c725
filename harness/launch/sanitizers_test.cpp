// In a build with sanitizers, a finding in a rank ends its process, and the launcher returns an outcome with which no
// case passes. These tests show that races and leaks are found, so that a run without findings means something.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/launch/launcher.hpp"

namespace lockstep::launch {
namespace {

using verdict::RankOutcome;
using verdict::RankStatus;

// Runs `fault` on two thread ranks. `text` receives the standard error of their process.
RankOutcome outcome_of(const std::function<void(int rank)>& fault, std::string& text) {
  LaunchOptions options;
  options.world_size = 2;
  options.launch = Launch::thread;
  options.timeout_seconds = 120;
  testing::internal::CaptureStderr();
  LaunchResult result = launch(options, [&](int rank) {
    fault(rank);
    RankOutcome outcome;
    outcome.rank = rank;
    return outcome;
  });
  text = testing::internal::GetCapturedStderr();
  return result.outcomes.at(0);
}

TEST(Sanitizers, AcceptCorrectRanks) {
  std::string text;
  const RankOutcome outcome = outcome_of([](int) {}, text);
  EXPECT_EQ(outcome.status, RankStatus::finished) << text;
  EXPECT_EQ(text, "");
}

#if defined(__SANITIZE_ADDRESS__)
TEST(Sanitizers, FindALeak) {
  std::string text;
  const RankOutcome outcome = outcome_of(
      [](int) {
        // Several leaks, because a pointer left in a register would hide one.
        for (int i = 0; i < 100; ++i) {
          volatile char* lost = static_cast<char*>(std::malloc(64));
          lost[0] = 1;
        }
      },
      text);
  EXPECT_EQ(outcome.status, RankStatus::exited);
  EXPECT_EQ(outcome.exit_code, 23);
  EXPECT_THAT(text, testing::HasSubstr("LeakSanitizer: detected memory leaks"));
}

TEST(Sanitizers, FindAWritePastTheEnd) {
  std::string text;
  const RankOutcome outcome = outcome_of(
      [](int rank) {
        // The size is unknown to the compiler, so that the address sanitizer and not UBSan reports the store.
        volatile int past = 64 + rank;
        volatile char* block = static_cast<char*>(std::malloc(static_cast<std::size_t>(past)));
        block[past] = 1;
        std::free(const_cast<char*>(block));
      },
      text);
  EXPECT_EQ(outcome.status, RankStatus::exited);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(text, testing::HasSubstr("AddressSanitizer: heap-buffer-overflow"));
}

TEST(Sanitizers, FindUndefinedBehavior) {
  std::string text;
  const RankOutcome outcome = outcome_of(
      [](int rank) {
        volatile int large = 2147483647 - rank;
        large = large + 1 + rank;
      },
      text);
  EXPECT_EQ(outcome.status, RankStatus::exited);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(text, testing::HasSubstr("signed integer overflow"));
}
#endif

#if defined(__SANITIZE_THREAD__)
TEST(Sanitizers, FindARaceOfTwoRanks) {
  std::string text;
  int shared = 0;
  const RankOutcome outcome = outcome_of([&](int rank) { shared += rank; }, text);
  EXPECT_EQ(outcome.status, RankStatus::exited);
  EXPECT_EQ(outcome.exit_code, 66);
  EXPECT_THAT(text, testing::HasSubstr("ThreadSanitizer: data race"));
}
#endif

}  // namespace
}  // namespace lockstep::launch
#endif
