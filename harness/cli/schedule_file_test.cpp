#include "harness/cli/schedule_file.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "engine/core/error.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    schedule_file_from_text(text, "f");
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(ScheduleFile, KeepsTheOptionsOfTheRun) {
  ScheduleFile file;
  file.scenario = "a";
  file.case_id = "world_size=3,launch=thread,device=sim";
  file.world_size = 3;
  file.timeout = 7.5;
  file.deadline = 0.5;
  file.memory_mb = 1;
  file.output_mb = 2;
  const ScheduleFile read = schedule_file_from_text(to_text(file), "f");
  EXPECT_EQ(read.case_id, file.case_id);
  EXPECT_EQ(read.world_size, 3);
  EXPECT_EQ(read.timeout, 7.5);
  EXPECT_EQ(read.deadline, 0.5);
  EXPECT_EQ(read.memory_mb, 1);
  EXPECT_EQ(read.output_mb, 2);
  const ScheduleFile plain = schedule_file_from_text("scenario: a\n", "f");
  EXPECT_FALSE(plain.world_size || plain.timeout || plain.deadline || plain.memory_mb || plain.output_mb);
}

TEST(ScheduleFile, RefusesWhatIsNoNumber) {
  for (const char* line : {"world_size: two", "world_size: 1.5", "world_size: 2000", "timeout: 0", "deadline: nan",
                           "memory_mb: -1", "output_mb: 1e12"})
    EXPECT_THAT(refusal(std::string("scenario: a\n") + line + "\n"), HasSubstr("f:2: `")) << line;
}

TEST(ScheduleFile, ReplayEndsAsTheRunThatWroteIt) {
  const Home home;
  home.add("big", "ranks: {world_size: [2]}\nsteps:\n  - let: {x: \"ones(1000, 1000)\"}\n  - expect_equal: [x, 1]\n");
  const std::string folder = home / "my files";
  const Ended first = lockstep(home, {"run", "big", "--schedule", "random:1", "--memory-mb", "1", "--world-size", "3",
                                      "--schedule-files", folder});
  EXPECT_EQ(first.code, 1) << first.out << first.err;
  EXPECT_THAT(first.out, HasSubstr("lockstep run --schedule 'replay:" + folder + "/schedule-1'"));
  const Ended again = lockstep(
      home, {"run", "--schedule", "replay:" + folder + "/schedule-1", "--schedule-files", home / "other files"});
  EXPECT_EQ(again.code, 1) << again.out << again.err;
}

TEST(ScheduleFile, IsKeptByALaterRun) {
  const Home home;
  ScheduleFile file;
  file.scenario = "a";
  EXPECT_EQ(write_schedule(home / "files", 1, file), home / "files/schedule-1");
  file.scenario = "b";
  EXPECT_EQ(write_schedule(home / "files", 1, file), home / "files/schedule-2");
  EXPECT_EQ(read_schedule_file(home / "files/schedule-1").scenario, "a");
  EXPECT_EQ(read_schedule_file(home / "files/schedule-2").scenario, "b");
}

TEST(ScheduleFile, AsksForTheParametersThatItFailedWith) {
  const Home home;
  home.add("adds",
           "parameters: {x: 1}\nranks: {world_size: [2]}\nsteps:\n  - let: {y: \"full([2], x)\"}\n"
           "  - expect_equal: [y, 1]\n");
  const std::string replay = "replay:" + (home / "files/schedule-1");
  ASSERT_EQ(
      lockstep(home, {"run", "adds", "--set", "x=2", "--schedule", "random:1", "--schedule-files", home / "files"})
          .code,
      1);
  const Ended ended = lockstep(home, {"run", "adds", "--schedule", replay});
  EXPECT_EQ(ended.code, 2) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("failed with --set x=2"));
  EXPECT_EQ(lockstep(home, {"run", "adds", "--set", "x=1", "--schedule", replay}).code, 0);
  EXPECT_EQ(lockstep(home, {"run", "--schedule", replay, "--schedule-files", home / "more"}).code, 1);
}

TEST(ScheduleFile, IsWholeOrAbsent) {
  const Home home;
  const Ended ended = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {100, 100};
    ::setrlimit(RLIMIT_FSIZE, &small);
    ScheduleFile file;
    file.scenario = std::string(200, 'a');
    try {
      write_schedule(home / "files", 1, file);
    } catch (const Error&) {
      return std::filesystem::is_empty(home / "files") ? 7 : 1;
    }
    return 0;
  });
  EXPECT_EQ(ended.code, 7);
}

TEST(ScheduleFile, ThatCannotBeWrittenHidesNoFailure) {
  const Home home;
  home.add("fails", "ranks: {world_size: [2]}\nsteps:\n  - let: {x: ones(2)}\n  - expect_equal: [x, rank]\n");
  const std::string folder = home / "file", results = home / "results.jsonl";
  std::ofstream(folder) << "in the way";
  const Ended ran =
      lockstep(home, {"run", "fails", "--schedule", "random:1", "--schedule-files", folder, "--results", results});
  EXPECT_EQ(ran.code, 3) << ran.out << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("making the folder " + folder));
  EXPECT_THAT(content_of(results), HasSubstr("\"status\":\"FAIL\""));
  EXPECT_THAT(content_of(results), HasSubstr("--schedule 'random:1'"));
}

TEST(ScheduleFile, IsOneWordOfTheCommandThatReruns) {
  const Home home;
  home.add("fails", "ranks: {world_size: [2]}\nsteps:\n  - let: {x: ones(2)}\n  - expect_equal: [x, rank]\n");
  home.add("passes", "ranks: {world_size: [2]}\nsteps:\n  - let: {x: ones(2)}\n  - expect_equal: [x, 1]\n");
  const std::string folder = home / "my files", results = home / "results.jsonl";
  ASSERT_EQ(lockstep(home, {"run", "fails", "--schedule", "random:1", "--schedule-files", folder}).code, 1);
  const Ended ran =
      lockstep(home, {"run", "passes", "--schedule", "replay:" + folder + "/schedule-1", "--results", results});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_THAT(content_of(results), HasSubstr(" --schedule 'replay:" + folder + "/schedule-1'"));
}

}  // namespace
}  // namespace lockstep::cli
