#include "harness/cli/doctor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/cuda/recording_calls.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

TEST(Doctor, ReportsEveryFindingAndTheirNumber) {
  const Home home;
  const Ended ended = in_child([&] {
    ::setenv("LOCKSTEP_HOME", home.path().c_str(), 1);
    ::setenv("LOCKSTEP_PYTHON", "/nowhere/python3", 1);
    return doctor();
  });
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(
      ended.out,
      AllOf(HasSubstr("  process ranks      two ranks started and summed\n"),
            HasSubstr("  thread ranks       two ranks started and summed\n"),
            HasSubstr("  scenarios          " + home.scenarios() + ", from LOCKSTEP_HOME\n"),
            HasSubstr("! Python             no Python with matplotlib and jinja2 was found; tried "
                      "/nowhere/python3 (not a program)\n                     remedy: install python3-matplotlib"),
            HasSubstr("found\n")));
}

TEST(Doctor, NamesTheRemedyOfAMissingFolder) {
  const Ended ended = in_child([] {
    ::setenv("LOCKSTEP_HOME", "/nowhere", 1);
    ::setenv("TMPDIR", "/nowhere", 1);
    return doctor();
  });
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("! scenarios          there is no folder /nowhere/scenarios\n"
                                   "                     remedy: set LOCKSTEP_HOME to the folder that"));
  EXPECT_THAT(ended.out, AllOf(HasSubstr("! temporary folder"), HasSubstr("remedy: set TMPDIR")));
}

TEST(Doctor, ShowsTheGpus) {
  const Ended ended = in_child([] {
    device::cuda::RecordingCalls cuda(2);
    const device::cuda::StandIn stand_in(cuda);
    return doctor();
  });
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("  CUDA               2 GPUs; the driver supports CUDA 13.0\n"),
                    HasSubstr("GPU 0: stand-in of CUDA on the host, 16384 MiB\n"), HasSubstr("GPU 1: stand-in")));
}

TEST(Doctor, SaysWhyThereIsNoGpu) {
  const Ended ended = in_child([] {
    device::cuda::RecordingCalls cuda;
    const device::cuda::StandIn stand_in(cuda);
    cuda.no_driver = "no driver here";
    return doctor();
  });
  EXPECT_THAT(ended.out, HasSubstr("  CUDA               cases are UNSUPPORTED: no driver here\n"));
}

}  // namespace
}  // namespace lockstep::cli
