// Cases over NCCL that end badly: ranks as threads, with a GPU each, over stand-ins of CUDA and NCCL.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_nccl.hpp"
#include "engine/core/error.hpp"
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

struct Refusal {
  const char* call;
  int nth;
};

// The ranks run in a copy of this process.
class NcclCase : public ::testing::TestWithParam<Refusal> {
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
}

TEST_P(NcclCase, FailsAndNamesTheRankOfARefusedCall) {
  nccl_.fail(GetParam().call, 1, GetParam().nth);
  const Ran ran = run();
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_THAT(ran.failures(), Not(IsEmpty()));
  EXPECT_THAT(ran.failures(), Each(HasSubstr(str("rank 1: ", GetParam().call, " of member 1: refused by the test"))));
}

// Of the preparation, of the first sum, and of the second. A poll is ncclCommGetAsyncError: the preparation makes four
// at least, and the sums six.
INSTANTIATE_TEST_SUITE_P(, NcclCase,
                         ::testing::Values(Refusal{"create", 2}, Refusal{"send", 1}, Refusal{"receive", 5},
                                           Refusal{"poll", 2}, Refusal{"poll", 10}),
                         [](const auto& row) { return str(row.param.call, "_", row.param.nth); });

}  // namespace
}  // namespace lockstep::run
