#include "harness/cli/standard_streams.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::HasSubstr;
using testing::IsEmpty;

// Replaces standard output by a file that is always full.
void fill_output() {
  const int full = ::open("/dev/full", O_WRONLY);
  ::dup2(full, STDOUT_FILENO);
  ::close(full);
}

TEST(StandardStreams, FillTheNumbersOfClosedStreams) {
  const Home home;
  const Ended ended = in_child([&] {
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(stream);
    prepare_standard_streams();
    const int file = ::open((home / "file").c_str(), O_WRONLY | O_CREAT, 0600);
    std::printf("a line for standard output\n");
    std::fflush(stdout);
    return file;
  });
  EXPECT_GT(ended.code, STDERR_FILENO);
  EXPECT_EQ(content_of(home / "file"), "");
}

TEST(StandardStreams, LeaveOpenStreamsAlone) {
  const Ended ended = in_child([] {
    prepare_standard_streams();
    std::printf("out");
    std::fprintf(stderr, "err");
    return exit_code_after_output(0);
  });
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "out");
  EXPECT_EQ(ended.err, "err");
}

TEST(StandardStreams, MakeAWriteToAClosedOutputAnError) {
  const Ended ended = in_child([] {
    ::close(STDOUT_FILENO);
    prepare_standard_streams();
    std::printf("lost");
    return exit_code_after_output(0);
  });
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.err,
            "lockstep: standard output could not be written: Bad file descriptor"
            " (free space there, or send it to a reader that stays until the end)\n");
}

TEST(StandardStreams, TurnGoodExitCodesIntoThreeWhenOutputIsFull) {
  const auto code_for = [](int code) {
    return in_child([&] {
             fill_output();
             std::printf("lost");
             return exit_code_after_output(code);
           })
        .code;
  };
  EXPECT_EQ(code_for(0), 3);
  EXPECT_EQ(code_for(77), 3);
  EXPECT_EQ(code_for(1), 1);
  EXPECT_EQ(code_for(130), 130);
}

TEST(StandardStreams, KeepTheReasonOfTheFirstFailure) {
  const Ended ended = in_child([] {
    fill_output();
    std::printf("lost");
    std::fflush(stdout);
    if (!output_failed()) return 9;
    errno = EACCES;
    output_failed();
    exit_code_after_output(0);
    return exit_code_after_output(0);
  });
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.err,
            "lockstep: standard output could not be written: No space left on device"
            " (free space there, or send it to a reader that stays until the end)\n")
      << "once";
}

TEST(StandardStreams, MakeABrokenPipeAnErrorOfTheWrite) {
  const Ended ended = in_child([] {
    prepare_standard_streams();
    int ends[2];
    if (::pipe(ends) != 0) return 9;
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    std::printf("lost");
    return exit_code_after_output(0);
  });
  EXPECT_EQ(ended.signal, 0);
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.err, HasSubstr("Broken pipe"));
}

TEST(StandardStreams, MakeAFileOfTheGreatestSizeAnErrorOfTheWrite) {
  const Home home;
  const Ended ended = in_child([&] {
    prepare_standard_streams();
    const int file = ::open((home / "file").c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(file, STDOUT_FILENO);
    const rlimit limit = {2, 2};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::printf("lost");
    std::fflush(stdout);
    return output_failed() ? 7 : 0;
  });
  EXPECT_EQ(ended.signal, 0);
  EXPECT_EQ(ended.code, 7);
}

TEST(Complain, EscapesCharactersThatSteerTheTerminal) {
  const Ended ended = in_child([] {
    complain("a \x1b[31mname");
    complain_plainly("a.yaml:1:1: a\nb");
    return 0;
  });
  EXPECT_EQ(ended.err, "lockstep: a \\x1b[31mname\na.yaml:1:1: a\nb\n");
}

TEST(Complain, IgnoresAFullStandardError) {
  const Ended ended = in_child([] {
    ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO);
    complain("lost");
    return exit_code_after_output(0);
  });
  EXPECT_EQ(ended.code, 0);
}

}  // namespace
}  // namespace lockstep::cli
