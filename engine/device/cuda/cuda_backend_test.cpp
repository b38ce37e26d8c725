// What the backend of Nvidia GPUs does about machines, devices and memory, against the stand-in that records calls.
#include "engine/device/cuda/cuda_backend.hpp"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/resources.hpp"
#include "engine/device/cuda/driver_errors.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/memory_limit.hpp"
#include "engine/device/place_on_host.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device::cuda {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr Device gpu{Kind::cuda, 0};
constexpr std::size_t gib = std::size_t{1} << 30;

TEST(DriverErrors, SayWhyAndWhatToDo) {
  EXPECT_THAT(message_of([] { require_versions(0, 13000); }), AllOf(HasSubstr("no Nvidia driver"), HasSubstr("sim")));
  EXPECT_THAT(message_of([] { require_versions(12040, 13000); }),
              AllOf(HasSubstr("supports CUDA 12.4"), HasSubstr("needs 13.0"), HasSubstr("newer driver")));
  require_versions(13000, 13010);  // of the same major version
  require_versions(14000, 13000);
  EXPECT_THAT(no_device().what(), AllOf(HasSubstr("no GPU"), HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_THAT(not_built().what(), AllOf(HasSubstr("this build"), HasSubstr("ci/build.sh cuda")));
}

TEST(CudaBackend, RefusesAMachineWithoutADriver) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  cuda.no_driver = "no driver here";
  const OneRank rank;
  EXPECT_THROW(require_available(Kind::cuda), UnsupportedError);
  EXPECT_THROW(allocate(gpu, 16), UnsupportedError);
  EXPECT_TRUE(cuda.log().empty());
}

// Without a GPU per rank all ranks use the first: NCCL connects no ranks of which only some share a GPU.
TEST(CudaBackend, GivesEachRankAGpuWhereThereAreEnough) {
  for (const int ranks : {3, 4}) {
    RecordingCalls cuda(3);
    const StandIn stand_in(cuda);
    for (int number = 0; number < ranks; ++number) {
      RankContext context(number, ranks);
      const RankScope scope(context);
      allocate(device_from_name("cuda"), 8);
      EXPECT_THAT(cuda.log(), Contains(str("use_device ", ranks == 3 ? number : 0)));
      EXPECT_EQ(cuda.count("use_device"), number + 1);
    }
  }
}

// Rank 3 of five is the first of two ranks on its host.
TEST(CudaBackend, CountsTheRanksOfItsHostAlone) {
  RecordingCalls cuda(2, std::size_t{4} << 30);
  const StandIn stand_in(cuda);
  RankContext context(3, 5);
  const RankScope scope(context);
  auto& place = context.service<PlaceOnHost>();
  place.index = 0;
  place.num_ranks = 2;
  allocate(gpu, 8);
  EXPECT_THAT(cuda.log(), Contains("use_device 0"));
  const GpuMemory memory{std::size_t{4} << 30, std::size_t{4} << 30};
  EXPECT_THAT(cuda.log(), Contains(str("allocate ", share_of(memory, 1, 1, 100 * gib))));
}

TEST(CudaBackend, SharesTheMemoryOfAGpuAmongItsRanks) {
  const GpuMemory large{80 * gib, 79 * gib};
  EXPECT_LE(share_of(large, 8, 8, 100 * gib) * 8, 72 * gib);
  EXPECT_GE(share_of(large, 8, 8, 100 * gib), 8 * gib);
  EXPECT_EQ(share_of(large, 1, 1, gib), gib);                           // no more than is wanted
  EXPECT_LE(share_of({80 * gib, gib}, 1, 1, 100 * gib), gib / 10 * 9);  // no more than is free
  EXPECT_EQ(share_of({gib, gib}, 2, 2, gib), 0U);                       // the contexts take it all
  EXPECT_EQ(share_of(large, 128, 128, gib), 0U);
  EXPECT_GE(share_of(large, 128, 1, gib), gib / 2);  // threads share a context
}

TEST(CudaBackend, LeavesRoomForTheRanksOfOtherCases) {
  RecordingCalls cuda(1, 80 * gib);
  const StandIn stand_in(cuda);
  RankContext context(0, 2);
  const RankScope scope(context);
  context.service<PlaceOnHost>().num_ranks_at_once = 16;
  allocate(gpu, 8);
  const GpuMemory memory{80 * gib, 80 * gib};
  EXPECT_THAT(cuda.log(), Contains(str("allocate ", share_of(memory, 16, 16, 100 * gib))));
}

TEST(CudaBackend, TakesLittleMoreThanTheLimitOfTheRank) {
  RecordingCalls cuda(1, 80 * gib);
  const StandIn stand_in(cuda);
  RankContext context(0, 1);
  const RankScope scope(context);
  limit_memory({.bytes = gib});
  allocate(gpu, 8);
  EXPECT_THAT(cuda.log(), Contains(str("allocate ", 2 * gib)));
}

TEST(CudaBackend, RefusesMoreProcessesThanAGpuHasRoomFor) {
  RecordingCalls cuda(1, std::size_t{4} << 30);
  const StandIn stand_in(cuda);
  RankContext context(0, 6);
  const RankScope scope(context);
  EXPECT_THROW(allocate(gpu, 8), UnsupportedError);
  EXPECT_THAT(message_of([] { allocate(gpu, 8); }),
              AllOf(HasSubstr("too little for 6 ranks and 6 contexts of CUDA"), HasSubstr("--launch thread")));
  EXPECT_EQ(cuda.num_live_allocations(), 0);
}

TEST(CudaBackend, CountsOneContextForRanksThatAreThreads) {
  RecordingCalls cuda(1, std::size_t{4} << 30);
  const StandIn stand_in(cuda);
  const auto world = HostWorld::create(6, Sharing::threads, std::size_t{1} << 30);
  RankContext context(0, 6, world.get());
  const RankScope scope(context);
  EXPECT_NO_THROW(allocate(gpu, 8));
  const GpuMemory memory{std::size_t{4} << 30, std::size_t{4} << 30};
  EXPECT_THAT(cuda.log(), Contains(str("allocate ", share_of(memory, 6, 1, gib))));
}

// The launcher shares the memory of ranks that are threads with its own process.
TEST(CudaBackend, CountsOneContextForThreadsOfALauncher) {
  RecordingCalls cuda(1, std::size_t{4} << 30);
  const StandIn stand_in(cuda);
  const auto world = HostWorld::create(6, Sharing::processes, std::size_t{1} << 30);
  RankContext context(0, 6, world.get());
  const RankScope scope(context);
  context.service<PlaceOnHost>().ranks_are_threads = true;
  EXPECT_NO_THROW(allocate(gpu, 8));
}

TEST(CudaBackend, RefusesMoreRanksThanACollectiveOnOneGpuCanHave) {
  RecordingCalls cuda(1, 80 * gib);
  const StandIn stand_in(cuda);
  RankContext context(0, max_ranks_per_gpu + 1);
  const RankScope scope(context);
  context.service<PlaceOnHost>().ranks_are_threads = true;
  EXPECT_THROW(allocate(gpu, 8), UnsupportedError);
  EXPECT_THAT(message_of([] { allocate(gpu, 8); }), HasSubstr("at most 64 ranks per GPU"));
}

TEST(CudaBackend, NamesAGpuWithoutMemory) {
  RecordingCalls cuda(1, std::size_t{700} << 20);
  const StandIn stand_in(cuda);
  const OneRank rank;
  EXPECT_THAT(message_of([] { allocate(gpu, 8); }),
              AllOf(HasSubstr("GPU 0 (stand-in of CUDA on the host)"), HasSubstr("too little")));
  EXPECT_EQ(cuda.num_live_allocations(), 0);
}

// Other programs have all but 1 MiB of a GPU that is large enough.
TEST(CudaBackend, NamesAGpuThatIsInUse) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  RecordingCalls cuda(1, 4 * gib);
  const StandIn stand_in(cuda);
  void* const others = cuda.allocate(4 * gib - mib);
  const OneRank rank;
  EXPECT_THROW(allocate(gpu, 8), ResourceError);
  EXPECT_THAT(message_of([] { allocate(gpu, 8); }),
              AllOf(HasSubstr(str("has ", mib, " of ", 4 * gib, " bytes free, too little for rank 0 of 1")),
                    HasSubstr("end other programs on the GPU")));
  EXPECT_EQ(cuda.num_live_allocations(), 1);
  cuda.release(others);
  EXPECT_EQ(allocate(gpu, 8)->bytes(), 8U);
}

TEST(CudaBackend, AllocatesOncePerRank) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  {
    const OneRank rank;
    std::vector<MemoryPtr> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(allocate(gpu, 100'000));
    EXPECT_EQ(cuda.count("allocate"), 1);
    EXPECT_EQ(memory_stats().current_total, 10'000'000);
    EXPECT_THAT(message_of([] { allocate(gpu, std::size_t{1} << 45); }), HasSubstr("out of memory on cuda:0"));
  }
  EXPECT_EQ(cuda.num_live_allocations(), 0);
}

TEST(RecordingCalls, WaitsForWordsOfTheHost) {
  RecordingCalls cuda;
  StreamHandle a = cuda.create_stream(), b = cuda.create_stream();
  alignas(8) std::uint64_t word = 0;
  bool ran = false;
  cuda.wait_word(a, &word, 3);
  cuda.launch(a, [&] { ran = true; });
  EXPECT_FALSE(ran);
  cuda.write_word(b, &word, 2);
  EXPECT_FALSE(ran);
  cuda.write_word(b, &word, 3);
  EXPECT_TRUE(ran);
}

TEST(RecordingCalls, WaitsForTheRecordThatAnEventHad) {
  RecordingCalls cuda;
  StreamHandle a = cuda.create_stream(), b = cuda.create_stream();
  EventHandle event = cuda.create_event(false);
  cuda.record_event(event, a);
  cuda.hold(a);
  bool ran = false;
  cuda.wait_event(b, event);
  cuda.launch(b, [&] { ran = true; });
  EXPECT_TRUE(ran);  // the first record is done
  cuda.record_event(event, a);
  EXPECT_FALSE(cuda.event_done(event));
  cuda.wait_event(b, event);
  cuda.launch(b, [&] { ran = false; });
  EXPECT_TRUE(ran);
  cuda.resume(a);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace lockstep::device::cuda
