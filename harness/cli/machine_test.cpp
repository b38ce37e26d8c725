#include "harness/cli/machine.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "engine/core/error.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::HasSubstr;
using testing::MatchesRegex;

TEST(Machine, StatesItsFacts) {
  const auto machine = machine_facts();
  EXPECT_EQ(machine.at("cores"), std::to_string(num_cores()));
  EXPECT_THAT(machine.at("memory"), MatchesRegex("[0-9]+ kB"));
  EXPECT_TRUE(machine.contains("cpu"));
  EXPECT_GT(available_memory(), 0);
}

TEST(Machine, StatesTheFactsOfTheBuild) {
  const auto build = build_facts();
  EXPECT_THAT(build.at("kokkos"), MatchesRegex("Kokkos [0-9.]+"));
  EXPECT_NE(build.at("kokkos_backends"), "");
  EXPECT_NE(build.at("blas"), "");
  EXPECT_NE(build.at("compiler"), "");
  EXPECT_THAT(version(), MatchesRegex("[0-9]+[.][0-9]+[.][0-9]+"));
}

TEST(Machine, CountsTheCoresThatTheProcessMayUse) {
  const Ended ended = in_child([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    return num_cores() == 1 && default_jobs() == 1 ? 0 : 1;
  });
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(default_jobs(), num_cores() + num_cores() / 2);
}

TEST(Machine, StatesTheTimeInUtc) {
  EXPECT_THAT(utc_now(), MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"));
}

TEST(Machine, FindsTheFoldersInLockstepHome) {
  const Home home;
  const Ended ended = in_child([&] {
    ::setenv("LOCKSTEP_HOME", home.path().c_str(), 1);
    std::printf("%s\n%s\n", scenarios_folder().c_str(), reports_folder().c_str());
    return 0;
  });
  EXPECT_EQ(ended.out, home.path() + "/scenarios\n" + home.path() + "/reports\n");
}

TEST(Machine, NamesAFolderThatIsMissing) {
  const Ended ended = in_child([] {
    ::setenv("LOCKSTEP_HOME", "/nowhere", 1);
    try {
      scenarios_folder();
    } catch (const Error& error) {
      std::printf("%s", error.what());
    }
    return 0;
  });
  EXPECT_THAT(ended.out, HasSubstr("there is no folder /nowhere/scenarios"));
  EXPECT_THAT(ended.out, HasSubstr("set LOCKSTEP_HOME"));
}

}  // namespace
}  // namespace lockstep::cli
