// What orders the members of a collective on one GPU. The other promises are those of every transport
// (transport_conformance_test.cpp).
#include "engine/comm/one_device.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "engine/comm/device_memory.hpp"
#include "engine/comm/test_gpu.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using testing::Each;
using testing_gpu::gpu;
using testing_gpu::run_on_gpu;

constexpr std::int64_t count = 1000;

// A kernel that writes the value into all elements when the stream of its process reaches it.
void fill_by_kernel(device::cuda::RecordingCalls& calls, const Tensor& tensor, float value, useconds_t duration) {
  device::launch(device::current_stream(gpu), "fill", {write(tensor)}, [&calls, value, duration](const auto& pointers) {
    calls.launch(pointers.execution().stream, [to = pointers.template as<float>(0), value, duration] {
      usleep(duration);
      for (std::int64_t i = 0; i < count; ++i) to[i] = value;
    });
  });
}

// Rank 1 is late: the kernel that writes its input takes a while.
TEST(OneDevice, ReadsInputsAfterTheKernelsThatWriteThem) {
  for (const Kind kind : {Kind::threads, Kind::processes}) {
    const auto failures = run_on_gpu(3, kind, [](int rank, device::cuda::RecordingCalls& calls) {
      for (int repeat = 1; repeat < 4; ++repeat) {
        const Tensor x = tensor_of(std::vector<float>(count, -1.0f), DType::float32, gpu);
        fill_by_kernel(calls, x, static_cast<float>(rank + repeat), rank == 1 ? 20'000 : 0);
        all_reduce(world_group(), x, ReduceOp::sum);
        for (const float value : values_of<float>(x))
          require(value == static_cast<float>(3 + 3 * repeat), "a wrong sum");
      }
    });
    EXPECT_THAT(failures, Each(""));
  }
}

// Rank 1 is late with its share of the sums, which goes to all members.
TEST(OneDevice, EndsWhenAllMembersHaveWrittenTheirShares) {
  const auto failures = run_on_gpu(3, Kind::processes, [](int rank) {
    if (rank == 1) testing_gpu::before_reduction = [] { usleep(20'000); };
    for (int repeat = 1; repeat < 4; ++repeat) {
      const Tensor x = tensor_of(std::vector<float>(count, static_cast<float>(rank + repeat)), DType::float32, gpu);
      all_reduce(world_group(), x, ReduceOp::sum);
      for (const float value : values_of<float>(x)) require(value == static_cast<float>(3 + 3 * repeat), "a wrong sum");
    }
  });
  EXPECT_THAT(failures, Each(""));
}

// A buffer may be written again as soon as the collective has ended, even if a peer was late to read it.
TEST(OneDevice, LetsNoMemberWriteABufferThatAPeerStillReads) {
  const auto failures = run_on_gpu(3, Kind::processes, [](int rank, device::cuda::RecordingCalls& calls) {
    if (rank == 1) testing_gpu::before_reduction = [] { usleep(20'000); };
    const Tensor all = tensor_of(std::vector<float>(3 * count, static_cast<float>(rank + 1)), DType::float32, gpu);
    const Tensor part = tensor_of(std::vector<float>(count), DType::float32, gpu);
    reduce_scatter(world_group(), part, all, ReduceOp::sum);
    fill_by_kernel(calls, slice(all, 0, 0, count), -100.0f, 0);
    device::current_stream(gpu).synchronize();
    for (const float value : values_of<float>(part)) require(value == 6.0f, "a wrong sum");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OneDevice, TakesNoMemoryForItsSums) {
  const auto failures = run_on_gpu(2, Kind::threads, [](int rank) {
    const Tensor x = tensor_of(std::vector<float>(count, static_cast<float>(rank + 1)), DType::float32, gpu);
    const Tensor all = empty({2 * count}, DType::float32, gpu);
    all_gather(world_group(), all, x);
    exchange(world_group(), "", "both have named their devices");
    const std::int64_t before = device::memory_stats().num_pool_misses;
    all_reduce(world_group(), x, ReduceOp::sum);
    require(device::memory_stats().num_pool_misses == before, "a pool grows");
    for (const float value : values_of<float>(x)) require(value == 3.0f, "a wrong sum");
  });
  EXPECT_THAT(failures, Each(""));
}

// Kernels before and after each collective; the host issues all of them before the first one runs.
TEST(OneDevice, AGroupOfOneNeedsNoWaitOfTheHostAndNoOtherThread) {
  const auto failures = run_on_gpu(1, Kind::threads, [](int, device::cuda::RecordingCalls& calls) {
    const Tensor x = empty({count}, DType::float32, gpu), part = empty({count}, DType::float32, gpu),
                 whole = empty({count}, DType::float32, gpu);
    const auto waits = [&] {
      const std::vector<std::string> log = calls.log();
      return std::count_if(log.begin(), log.end(), [](const auto& call) { return call.starts_with("synchronize"); });
    };
    const auto num_threads = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                           std::filesystem::directory_iterator());
    };
    const auto waits_before = waits();
    const auto threads_before = num_threads();
    fill_by_kernel(calls, x, 3.0f, 20'000);
    all_reduce(world_group(), x, ReduceOp::mean);
    reduce_scatter(world_group(), part, x, ReduceOp::sum);
    Call async;
    async.async = true;
    all_gather(world_group(), whole, part, async).wait();
    fill_by_kernel(calls, x, -1.0f, 0);
    require(waits() == waits_before, "the host waits");
    require(num_threads() == threads_before, "a thread was started");
    for (const Tensor& tensor : {part, whole})
      for (const float value : values_of<float>(tensor)) require(value == 3.0f, "a wrong value");
  });
  EXPECT_THAT(failures, Each(""));
}

// The stream of rank 0 waits for rank 1 when the collective of rank 0 alone is issued on it.
TEST(OneDevice, AGroupOfOneFollowsEarlierCollectivesOfItsStream) {
  const auto failures = run_on_gpu(2, Kind::threads, [](int rank) {
    const Tensor x = tensor_of(std::vector<float>(count, static_cast<float>(rank + 1)), DType::float32, gpu);
    const Tensor y = empty({count}, DType::float32, gpu);
    exchange(world_group(), "", "both have named their devices");
    if (rank == 1) usleep(30'000);
    Call async;
    async.async = true;
    async.stream = &device::stream(gpu, device::Role::all_gather);
    const Work first = all_reduce(world_group(), x, ReduceOp::sum, async);
    const Work second = all_gather(group_of({rank}, "alone"), y, x, async);
    first.wait();
    second.wait();
    for (const float value : values_of<float>(y)) require(value == 3.0f, "not the sum");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OneDevice, RanksWithoutADeviceShareNone) {
  const World world(2, Kind::threads);
  const std::int32_t ranks[] = {0, 1};
  EXPECT_FALSE(share_a_device(control_of(*world.host), ranks, 2));
}

// The collective fails while the kernel of rank 1 reads and writes the buffers of all.
TEST(OneDevice, KeepsTheBuffersOfAFailedMemberUntilNoPeerUsesThem) {
  struct Shared {
    std::atomic<bool> moves, has_moved;
  };
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *static_cast<Shared*>(memory);
  const auto failures = run_on_gpu(3, Kind::processes, [&](int rank) {
    if (rank == 1)
      testing_gpu::before_reduction = [&] {
        shared.moves = true;
        usleep(300'000);
        shared.has_moved = true;
      };
    const Tensor x = tensor_of(std::vector<float>(count, 1.0f), DType::float32, gpu);
    all_reduce(world_group(), x, ReduceOp::sum);
    while (!shared.moves) usleep(1000);
    if (rank == 0) announce_abort(*static_cast<device::HostWorld*>(RankContext::current().shared()), "for a test");
    try {
      device::current_stream(gpu).synchronize();
    } catch (const Error&) {
      require(shared.has_moved, "the kernel of rank 1 was not waited for");
      throw;
    }
  });
  ::munmap(memory, sizeof(Shared));
  EXPECT_THAT(failures[0], testing::HasSubstr("the case was aborted"));
  EXPECT_THAT(failures[2], testing::HasSubstr("the case was aborted"));
}

TEST(OneDevice, FailsOnAllMembersWhenTheDeviceRefusesACall) {
  for (const char* call : {"synchronize_stream", "handle_of", "launch"}) {
    const auto failures = run_on_gpu(3, Kind::processes, [&](int rank, device::cuda::RecordingCalls& calls) {
      const Tensor x = tensor_of(std::vector<float>(count, 1.0f), DType::float32, gpu);
      if (rank == 1) calls.fail(call, 1);
      all_reduce(world_group(), x, ReduceOp::sum);
      device::current_stream(gpu).synchronize();
    });
    EXPECT_THAT(failures, Each(testing::HasSubstr(call))) << call;
  }
}

// Ranks with a GPU each need a transport between GPUs.
TEST(OneDevice, IsRefusedForRanksOnSeveralDevicesWithoutNccl) {
  device::cuda::RecordingCalls calls(2);
  const device::cuda::StandIn stand_in(calls);
  nccl::replace_calls(nullptr);
  const auto failures = run_ranks(2, Kind::threads, [](int) {
    const Tensor x = tensor_of(std::vector<float>(count, 1.0f), DType::float32, gpu);
    all_reduce(world_group(), x, ReduceOp::sum);
    device::current_stream(gpu).synchronize();
  });
  nccl::restore_calls();
  EXPECT_THAT(failures,
              Each(testing::AllOf(testing::HasSubstr("between devices"), testing::HasSubstr("CUDA_VISIBLE_DEVICES"))));
}

}  // namespace
}  // namespace lockstep::comm
