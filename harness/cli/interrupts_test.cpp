#include "harness/cli/interrupts.hpp"

#include <csignal>
#include <cstdio>

#include <gtest/gtest.h>

#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;

// The output of a child that catches interrupts and sends itself a signal.
Ended after(int signal) {
  return in_child([&] {
    catch_interrupts();
    ::raise(signal);
    std::printf("%s", interruption().c_str());
    return (interrupted() ? 1 : 0) + (out_of_time() ? 2 : 0);
  });
}

TEST(Interrupts, AreNoneBeforeASignal) {
  EXPECT_FALSE(interrupted());
  EXPECT_FALSE(out_of_time());
  EXPECT_EQ(interruption(), "");
}

TEST(Interrupts, NameTheSignal) {
  EXPECT_EQ(after(SIGINT).out, "the run was interrupted (SIGINT)");
  EXPECT_EQ(after(SIGTERM).out, "the run was interrupted (SIGTERM)");
  EXPECT_EQ(after(SIGHUP).out, "the run was interrupted (SIGHUP)");
  EXPECT_EQ(after(SIGQUIT).out, "the run was interrupted (SIGQUIT)");
  EXPECT_EQ(after(SIGTERM).code, 1);
}

TEST(Interrupts, TellTheTimeOutFromASignal) {
  const Ended ended = after(SIGALRM);
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.out, "the time-out of the whole run has passed");
}

TEST(Interrupts, ComeThoughTheParentHasBlockedThem) {
  const Ended ended = in_child([] {
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    std::signal(SIGCHLD, SIG_IGN);
    reset_inherited_signals();
    catch_interrupts();
    ::raise(SIGTERM);
    const bool tells_ends = std::signal(SIGCHLD, SIG_DFL) == SIG_DFL;
    return (interrupted() ? 1 : 0) + (tells_ends ? 2 : 0);
  });
  EXPECT_EQ(ended.code, 3);
}

TEST(Interrupts, LeaveAnIgnoredHangUpIgnored) {
  const Ended ended = in_child([] {
    std::signal(SIGHUP, SIG_IGN);
    catch_interrupts();
    ::raise(SIGHUP);
    return interrupted() ? 1 : 0;
  });
  EXPECT_EQ(ended.code, 0);
}

}  // namespace
}  // namespace lockstep::cli
