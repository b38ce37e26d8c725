// Sums in the order of NCCL instead of the fixed one (SumOrder).
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_gpu.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing_gpu::gpu;
using testing_gpu::run_on_gpus;
using testing_nccl::RecordingNccl;

constexpr std::int64_t count = 6;

// The stand-in of NCCL adds from the last member to the first: (1 - large) + large, where the tree gives (large -
// large) + 1.
TEST(SumOrder, AddsInTheOrderOfTheLibraryWhereItIsChosen) {
  const auto failures = run_on_gpus(3, [](int rank, RecordingNccl& nccl) {
    const float large = 1e8f, mine = rank == 0 ? large : rank == 1 ? -large : 1;
    const auto sum_of = [&](ReduceOp op) {
      const Tensor x = tensor_of(std::vector<float>(count, mine), DType::float32, gpu);
      all_reduce(world_group(), x, op);
      return values_of<float>(x)[count - 1];
    };
    const auto shard_of = [&](ReduceOp op) {
      const Tensor all = tensor_of(std::vector<float>(3 * count, mine), DType::float32, gpu);
      const Tensor own = empty({count}, DType::float32, gpu);
      reduce_scatter(world_group(), own, all, op);
      return values_of<float>(own)[count - 1];
    };
    require(sum_of(ReduceOp::sum) == 1 && shard_of(ReduceOp::sum) == 1, "the fixed order");
    set_sum_order(SumOrder::library, gpu);
    require(sum_order() == SumOrder::library, "the order is not kept");
    const std::size_t before = nccl.log(rank).size();
    require(sum_of(ReduceOp::sum) == 0 && shard_of(ReduceOp::sum) == 0, "the order of the library");
    require(sum_of(ReduceOp::mean) == 0 && shard_of(ReduceOp::mean) == 0, "a mean in the order of the library");
    const std::vector<std::string> log = nccl.log(rank), sums = {"all_reduce 6", "reduce_scatter 6"};
    require(std::vector<std::string>(log.begin() + static_cast<std::ptrdiff_t>(before), log.end()) ==
                std::vector<std::string>({sums[0], sums[1], sums[0], sums[1]}),
            "other calls of NCCL");
    require(sum_of(ReduceOp::max) == large && nccl.log(rank).back() != sums[0], "a maximum depends on no order");
    set_sum_order(SumOrder::fixed, gpu);
    require(sum_of(ReduceOp::sum) == 1 && shard_of(ReduceOp::sum) == 1, "the fixed order again");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(SumOrder, SumsOfTheLibraryCoverEveryTypeAndCountTheirBytes) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl&) {
    set_sum_order(SumOrder::library, gpu);
    for (const DType dtype :
         {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32}) {
      const Tensor x = full({4}, rank + 2, dtype, gpu);
      const std::int64_t moved = transport_bytes();
      all_reduce(world_group(), x, ReduceOp::sum);
      require(item(slice(x, 0, 3, 4)) == 5, "a wrong sum");
      all_reduce(world_group(), x, ReduceOp::product);
      require(item(slice(x, 0, 0, 1)) == 25, "a wrong product");
      require(transport_bytes() - moved == 2 * 4 * static_cast<std::int64_t>(size_of(dtype)), "other bytes");
    }
  });
  EXPECT_THAT(failures, Each(""));
}

// It fails like every call, with one text on all members.
TEST(SumOrder, ASumOfTheLibraryThatFailsEndsOnAllMembers) {
  const auto failures = run_on_gpus(3, [](int rank, RecordingNccl& nccl) {
    set_sum_order(SumOrder::library, gpu);
    if (rank == 2) nccl.fail("all_reduce", 2, 1);
    const Tensor x = full({count}, 1.0, DType::float32, gpu);
    all_reduce(world_group(), x, ReduceOp::sum);
    device::current_stream(gpu).synchronize();
  });
  EXPECT_THAT(failures, Each(HasSubstr("rank 2: all_reduce of member 2: refused by the test")));
}

TEST(SumOrder, RanksAgreeOnTheOrderOfASum) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl&) {
    set_sum_order(SumOrder::library, gpu);
    if (rank == 1) set_sum_order(SumOrder::fixed, gpu);
    const Tensor x = full({count}, 1.0, DType::float32, gpu);
    all_reduce(world_group(), x, ReduceOp::sum);
    device::current_stream(gpu).synchronize();
  });
  EXPECT_THAT(failures, Each(HasSubstr("the order of sums (rank 0: library; rank 1: fixed)")));
}

TEST(SumOrder, OfALibraryIsRefusedWhereNoneAdds) {
  const auto refusal = [](device::Device at) {
    try {
      set_sum_order(SumOrder::library, at);
    } catch (const UnsupportedError& refused) {
      require(sum_order() == SumOrder::fixed, "it is set all the same");
      throw Error(refused.what());
    }
  };
  for (const char* kind : {"cpu", "sim"})
    EXPECT_THAT(run_ranks(2, Kind::threads, [&](int) { refusal(device::device_from_name(kind)); }),
                Each(AllOf(HasSubstr(str("on ", kind, " the engine adds")), HasSubstr("--device cuda"))));
  EXPECT_THAT(testing_gpu::run_on_gpu(2, Kind::threads, [&](int) { refusal(gpu); }),
              Each(HasSubstr("this build has no NCCL")));
}

TEST(SumOrder, OfALibraryNeedsAGpuPerRank) {
  device::cuda::RecordingCalls calls(2);
  const device::cuda::StandIn stand_in(calls);
  RecordingNccl library(calls);
  nccl::replace_calls(&library);
  const auto failures = run_ranks(3, Kind::threads, [](int) { set_sum_order(SumOrder::library, gpu); });
  nccl::restore_calls();
  EXPECT_THAT(failures, Each(AllOf(HasSubstr("ranks 0 and 1 share the device stand-in 0"),
                                   HasSubstr("use no more ranks than devices"))));
}

}  // namespace
}  // namespace lockstep::comm
