// Cases over NCCL that end badly: ranks as threads, with a GPU each, over stand-ins of CUDA and NCCL.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_nccl.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_support::Ran;
using testing_support::ranks;
using testing_support::run_steps;
using verdict::Status;

constexpr const char* two_sums = R"yaml(
  - let: {x: "ones(4)"}
  - all_reduce: {tensor: x, op: sum}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: [x, "full([4], 9)"]
)yaml";

class NcclCase : public ::testing::Test {
 protected:
  static constexpr int world_size = 3;
  NcclCase() {
    cuda_.be_lazy();
    comm::nccl::replace_calls(&nccl_);
  }
  ~NcclCase() override { comm::nccl::restore_calls(); }
  static Ran run() {
    testing_support::TextOptions options = ranks(world_size);
    options.device = "cuda";
    return run_steps(two_sums, options);
  }

 private:
  device::cuda::RecordingCalls cuda_{world_size};
  const device::cuda::StandIn stand_in_{cuda_};

 protected:
  comm::testing_nccl::RecordingNccl nccl_{cuda_};
};

TEST_F(NcclCase, PassesWhereNothingIsRefused) {
  const Ran ran = run();
  EXPECT_EQ(ran.result.status, Status::PASS) << ran.result.reason;
  EXPECT_GT(nccl_.count("send"), 0);
}

// Of a preparation, of the first sum, and of the second.
TEST_F(NcclCase, ARefusedCallFailsTheCaseAndNamesTheRank) {
  for (const auto& [call, nth] : std::vector<std::pair<std::string, int>>{{"create", 2}, {"send", 1}, {"receive", 5}}) {
    nccl_.fail(call, 1, nth);
    const Ran ran = run();
    EXPECT_EQ(ran.result.status, Status::FAIL) << call;
    EXPECT_THAT(ran.failures(), Not(IsEmpty())) << call;
    EXPECT_THAT(ran.failures(), Each(HasSubstr("rank 1: " + call + " of member 1: refused by the test")));
    EXPECT_EQ(nccl_.num_open(), 0U) << call;
  }
}

}  // namespace
}  // namespace lockstep::run
