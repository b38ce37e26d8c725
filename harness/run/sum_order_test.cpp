// Cases whose sums have the order of NCCL: ranks as threads, with a GPU each, over stand-ins of CUDA and NCCL. The one
// of NCCL adds from the last rank to the first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_nccl.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::Ran;
using testing_support::ranks;
using testing_support::run_steps;
using verdict::Status;

// (1 + e) + e is 1 in float32, and (e + e) + 1 is not.
constexpr const char* sum = R"yaml(
  - let: {x: "full([4], 1.0 if rank == 0 else 2.0 ** -24)"}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: [x, "full([4], 1.0)"]
  - expect_across: {value: x, same: true}
)yaml";

class SumOrder : public ::testing::Test {
 protected:
  static constexpr int world_size = 3;
  SumOrder() {
    cuda_.be_lazy();
    comm::nccl::replace_calls(&nccl_);
  }
  ~SumOrder() override { comm::nccl::restore_calls(); }
  static Ran run(const std::string& steps, const std::string& head, const std::string& device = "cuda") {
    testing_support::TextOptions options = ranks(world_size);
    options.device = device;
    options.head = head;
    return run_steps(steps, options);
  }

 private:
  device::cuda::RecordingCalls cuda_{world_size};
  const device::cuda::StandIn stand_in_{cuda_};
  comm::testing_nccl::RecordingNccl nccl_{cuda_};
};

TEST_F(SumOrder, FixedGivesTheBitsOfTheTree) {
  const Ran ran = run(sum, "bits: required\n");
  EXPECT_EQ(ran.result.status, Status::PASS) << ran.result.reason;
  EXPECT_EQ(ran.evidence().bits_required, 2);
  EXPECT_EQ(ran.evidence().bits_relaxed, 0);
}

TEST_F(SumOrder, OfTheLibraryTurnsRequiredBitsIntoATolerance) {
  const Ran ran = run(sum, "bits: required\nsum_order: library\n");
  EXPECT_EQ(ran.result.status, Status::PASS) << ran.result.reason;
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_EQ(ran.evidence().bits_relaxed, 1);
  EXPECT_EQ(ran.evidence().bits_required, 1);  // of the values across ranks
  EXPECT_EQ(ran.evidence().same_bits, 1);
  EXPECT_GT(ran.evidence().max_abs_difference, 0.0);
  EXPECT_EQ(ran.evidence().loosest.rtol, 1e-3);
  EXPECT_EQ(ran.evidence().loosest.of_largest, 1e-4);
}

TEST_F(SumOrder, OfTheLibraryLeavesAStatedToleranceAlone) {
  const Ran ran = run(R"yaml(
  - let: {x: "full([4], 1.0)"}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: {actual: x, expected: "full([4], 3.0001)", atol: 0.00005, rtol: 0}
  - expect_equal: {actual: x, expected: "full([4], 3.0001)", atol: 0.0002, rtol: 0}
  - expect_equal: {actual: x, expected: "full([4], 3.0001)"}
)yaml",
                      "bits: required\nsum_order: library\n");
  EXPECT_THAT(ran.failures(), ElementsAre(HasSubstr("beyond rtol 0, atol 5e-05")));
}

TEST_F(SumOrder, OfTheLibraryStillFailsBeyondTheTolerance) {
  const Ran ran = run(R"yaml(
  - let: {x: "full([4], 1.0)", n: "full([4], rank, dtype=int64)"}
  - all_reduce: {tensor: x, op: sum}
  - all_reduce: {tensor: n, op: sum}
  - expect_equal: {actual: x, expected: "full([4], 3.01)", bits: true}
  - expect_equal: {actual: n, expected: "full([4], 4, dtype=int64)", bits: true}
)yaml",
                      "sum_order: library\n");
  EXPECT_THAT(ran.failures(), ElementsAre(HasSubstr("beyond rtol 0.001"), HasSubstr("have other bits")));
}

// A type counts from its first tensor on.
TEST_F(SumOrder, OfTheLibraryTakesTheToleranceOfTheCoarsestType) {
  const std::string narrow = R"yaml(
  - let: {x: "full([4], 1.0)"}
  - all_reduce: {tensor: x, op: sum}
  - let: {before: "to(full([1], 1.0), float16)"}
  - expect_equal: {actual: x, expected: "full([4], 3.02)", bits: true}
  - let: {narrow: "to(x, bfloat16)"}
  - expect_equal: {actual: "to(narrow, float32)", expected: "full([4], 3.02)", bits: true}
  - expect_equal: {actual: "to(narrow, float32)", expected: "full([4], 3.1)", bits: true}
  - expect_equal: {actual: "to(narrow, float32)", expected: "full([4], 3.4)", bits: true}
)yaml";
  const Ran ran = run(narrow, "sum_order: library\n");
  EXPECT_THAT(ran.failures(), ElementsAre(HasSubstr("beyond rtol 0.05")));
  EXPECT_EQ(ran.evidence().loosest.rtol, 5e-2);
  const std::string wide = R"yaml(
  - let: {x: "full([4], 1.0)"}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: {actual: x, expected: "full([4], 3.02)", bits: true}
  - let: {narrow: "to(x, bfloat16)"}
)yaml";
  EXPECT_THAT(run(wide, "sum_order: library\n").failures(), ElementsAre(HasSubstr("beyond rtol 0.001")));
}

TEST_F(SumOrder, OfTheLibraryIsUnsupportedOnOtherDevices) {
  for (const char* device : {"cpu", "sim"}) {
    const Ran ran = run(sum, "sum_order: library\n", device);
    EXPECT_EQ(ran.result.status, Status::UNSUPPORTED);
    EXPECT_THAT(ran.result.reason,
                AllOf(HasSubstr(str("on ", device, " the engine adds")), HasSubstr("--device cuda")));
  }
}

}  // namespace
}  // namespace lockstep::run
