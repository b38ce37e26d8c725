#include <atomic>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/allocations.hpp"
#include "engine/device/arena.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/memory_limit.hpp"
#include "engine/device/stand_in_memory.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::HasSubstr;

std::int64_t current(Purpose purpose) { return memory_stats().current[static_cast<std::size_t>(purpose)]; }
std::int64_t peak(Purpose purpose) { return memory_stats().peak[static_cast<std::size_t>(purpose)]; }

TEST(Device, ReadsItsNames) {
  for (Kind kind : {Kind::cpu, Kind::sim, Kind::meta, Kind::cuda}) EXPECT_EQ(kind_from_name(name_of(kind)), kind);
  for (int i = 0; i < num_purposes; ++i) {
    EXPECT_EQ(purpose_from_name(name_of(static_cast<Purpose>(i))), static_cast<Purpose>(i));
  }
  EXPECT_THROW(kind_from_name("gpu"), Error);
  EXPECT_THROW(purpose_from_name("weights"), Error);
}

TEST(Device, UsesTheRankAsDefaultIndex) {
  EXPECT_EQ(device_from_name("sim"), (Device{Kind::sim, 0}));
  RankContext context(3, 4);
  RankScope scope(context);
  EXPECT_EQ(device_from_name("sim"), (Device{Kind::sim, 3}));
  EXPECT_EQ(device_from_name("sim:1"), (Device{Kind::sim, 1}));
  EXPECT_EQ(device_from_name("cpu"), cpu);
  EXPECT_EQ(device_from_name("cpu:0"), cpu);
  EXPECT_EQ(to_text(Device{Kind::sim, 1}), "sim:1");
  EXPECT_EQ(to_text(cpu), "cpu");
  for (const char* wrong : {"sim:", "sim:x", "sim:-1", "sim:1x", "cpu:1", "", ":1"}) {
    EXPECT_THROW(device_from_name(wrong), Error) << wrong;
  }
}

TEST(Device, RejectsCudaWithoutADriver) {
  cuda::RecordingCalls machine;
  machine.no_driver = "no driver";
  const cuda::StandIn stand_in(machine);
  OneRank rank;
  EXPECT_THROW(require_available(Kind::cuda), UnsupportedError);
  EXPECT_THROW(allocate({Kind::cuda, 0}, 16), UnsupportedError);
  EXPECT_NO_THROW(require_available(Kind::sim));
}

TEST(Memory, CountsByPurpose) {
  OneRank rank;
  {
    const MemoryPtr activation = allocate(cpu, 100);
    PurposeScope outer(Purpose::parameter);
    const MemoryPtr parameter = allocate(cpu, 1000);
    {
      PurposeScope inner(Purpose::gradient);
      const MemoryPtr gradient = allocate(sim, 10);
      EXPECT_EQ(gradient->purpose(), Purpose::gradient);
      EXPECT_EQ(current(Purpose::gradient), 10);
    }
    const MemoryPtr communication = allocate(cpu, 7, Purpose::communication);
    EXPECT_EQ(activation->purpose(), Purpose::activation);
    EXPECT_EQ(current(Purpose::activation), 100);
    EXPECT_EQ(current(Purpose::parameter), 1000);
    EXPECT_EQ(current(Purpose::gradient), 0);
    EXPECT_EQ(current(Purpose::communication), 7);
    EXPECT_EQ(memory_stats().current_total, 1107);
  }
  EXPECT_EQ(memory_stats().current_total, 0);
  EXPECT_EQ(peak(Purpose::gradient), 10);
  EXPECT_EQ(peak(Purpose::parameter), 1000);
  EXPECT_EQ(memory_stats().peak_total, 1110);
  EXPECT_EQ(memory_stats().num_allocations, 4);
}

TEST(Memory, ChangesPurpose) {
  OneRank rank;
  MemoryWindow all, gradients(1u << static_cast<unsigned>(Purpose::gradient));
  MemoryPtr block = allocate(cpu, 100);
  repurpose(*block, Purpose::gradient);
  EXPECT_EQ(block->purpose(), Purpose::gradient);
  EXPECT_EQ(current(Purpose::activation), 0);
  EXPECT_EQ(current(Purpose::gradient), 100);
  EXPECT_EQ(peak(Purpose::activation), 100);
  EXPECT_EQ(peak(Purpose::gradient), 100);
  EXPECT_EQ(all.peak_bytes(), 100);
  EXPECT_EQ(gradients.peak_bytes(), 100);
  EXPECT_EQ(memory_stats().peak_total, 100);
  block.reset();
  EXPECT_EQ(current(Purpose::gradient), 0);
  EXPECT_EQ(memory_stats().current_total, 0);
}

TEST(Memory, RecordsPeaksInWindows) {
  OneRank rank;
  const MemoryPtr before = allocate(cpu, 1, Purpose::gathered);
  MemoryWindow all;
  std::int64_t inner_peak = 0;
  {
    MemoryWindow gathered(1u << static_cast<unsigned>(Purpose::gathered));
    EXPECT_EQ(gathered.peak_bytes(), 1);
    MemoryPtr a = allocate(cpu, 10, Purpose::gathered);
    MemoryPtr b = allocate(sim, 20, Purpose::gathered);
    MemoryPtr other = allocate(cpu, 500, Purpose::gradient);
    a.reset();
    b.reset();
    MemoryPtr c = allocate(cpu, 15, Purpose::gathered);
    inner_peak = gathered.peak_bytes();
  }
  MemoryPtr later = allocate(cpu, 5000);
  EXPECT_EQ(inner_peak, 31);
  repurpose(*later, Purpose::gathered);
  EXPECT_EQ(num_allocations(1u << static_cast<unsigned>(Purpose::gathered)), 5);
  EXPECT_EQ(num_allocations(1u << static_cast<unsigned>(Purpose::gradient)), 1);
  EXPECT_EQ(num_allocations((1u << num_purposes) - 1), 7);
  EXPECT_EQ(all.peak_bytes(), 5001);
}

TEST(Memory, ReusesPoolsInRepeatedSteps) {
  OneRank rank;
  const auto step = [] {
    std::vector<MemoryPtr> blocks;
    for (int i = 1; i < 50; ++i) blocks.push_back(allocate(i % 2 == 0 ? cpu : sim, static_cast<std::size_t>(i) * 777));
    blocks.erase(blocks.begin() + 10, blocks.begin() + 20);
    for (int i = 1; i < 20; ++i) blocks.push_back(allocate(cpu, static_cast<std::size_t>(i) * 3000));
  };
  step();
  const std::int64_t misses = memory_stats().num_pool_misses;
  EXPECT_GT(misses, 0);
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(memory_stats().num_pool_misses, misses);
  EXPECT_EQ(memory_stats().num_allocations, 11 * 68);
}

TEST(Memory, AllowsZeroBytes) {
  OneRank rank;
  const MemoryPtr nothing = allocate(sim, 0);
  EXPECT_EQ(nothing->bytes(), 0u);
  bool ran = false;
  launch(current_stream(sim), "nothing", {Access{nothing.get(), 0, 0, Mode::write}},
         [&](const Pointers& p) { ran = p.at(0) == nullptr; });
  synchronize_all();
  EXPECT_TRUE(ran);
}

TEST(Memory, ReportsSizesByPurposeWhenOutOfMemory) {
  const auto world = HostWorld::create(1, Sharing::threads, 1 << 20, 1 << 16);
  RankContext context(0, 1, world.get());
  RankScope scope(context);
  const MemoryPtr parameters = allocate(sim, 700000, Purpose::parameter);
  const MemoryPtr elsewhere = allocate(cpu, 333, Purpose::gradient);
  try {
    allocate(sim, 600000, Purpose::gathered);
    FAIL() << "the arena has less memory";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("out of memory on sim:0 of rank 0: 600000 bytes for gathered"));
    EXPECT_THAT(error.what(), HasSubstr("700000 (parameter)"));
    EXPECT_THAT(error.what(), HasSubstr("1048576"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("333")));
  }
  EXPECT_EQ(memory_stats().current_total, 700333);
  EXPECT_NO_THROW(allocate(sim, 100000));
}

TEST(Memory, UsesOnePoolPerStream) {
  OneRank rank;
  Stream& side = stream(cpu, Role::all_gather);
  std::byte* first = nullptr;
  std::byte* second = nullptr;
  const auto address = [](const MemoryPtr& memory, std::byte*& out) {
    launch(current_stream(cpu), "look", {Access{memory.get(), 0, 64, Mode::read}},
           [&](const Pointers& p) { out = p.at(0); });
  };
  {
    StreamScope scope(side);
    MemoryPtr block = allocate(cpu, 64);
    address(block, first);
  }
  MemoryPtr other = allocate(cpu, 64);
  address(other, second);
  EXPECT_NE(first, second);
  StreamScope scope(side);
  MemoryPtr again = allocate(cpu, 64);
  address(again, second);
  EXPECT_EQ(first, second);
}

TEST(Memory, OutlivesItsRank) {
  MemoryPtr kept;
  {
    OneRank rank;
    kept = allocate(cpu, 123);
    kept->label = "kept";
  }
  EXPECT_EQ(kept->bytes(), 123u);
  EXPECT_EQ(kept->label, "kept");
}

TEST(Memory, IsReleasedByAWorker) {
  OneRank rank;
  {
    MemoryPtr block = allocate(sim, 4096);
    launch(current_stream(sim), "own", {Access{block.get(), 0, 4096, Mode::write}},
           [block](const Pointers& p) { p.at(0)[0] = std::byte{1}; });
    block.reset();
    synchronize_all();
  }
  const MemoryPtr next = allocate(sim, 4096);
  EXPECT_EQ(memory_stats().current_total, 4096);
  EXPECT_EQ(memory_stats().num_pool_misses, 1);
}

TEST(Memory, IsReleasedByAnotherThread) {
  OneRank rank;
  MemoryPtr block = allocate(cpu, 100);
  std::thread([gone = std::move(block)]() mutable { gone.reset(); }).join();
  EXPECT_EQ(memory_stats().current_total, 100);
  allocate(cpu, 0);
  EXPECT_EQ(memory_stats().current_total, 0);
}

TEST(MemoryLimit, RejectsRequestsAboveTheSumOverDevices) {
  OneRank rank;
  const auto values = std::make_shared<std::atomic<std::int64_t>>(0);
  limit_memory({.bytes = 1 << 20, .beside = values, .remedy = "ask for less"});
  const MemoryPtr first = allocate(cpu, 1 << 19, Purpose::parameter);
  {
    const MemoryPtr second = allocate(sim, 1 << 19);
    try {
      allocate(cpu, 1);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                "out of memory on cpu of rank 0: 1 bytes for activation go past the 1048576 that a rank may use; in "
                "use are 1048576 on all devices, on this one 524288 (parameter), and 0 for values");
      EXPECT_EQ(error.remedy(), "ask for less");
    }
    EXPECT_EQ(memory_stats().current_total, 1 << 20);
    EXPECT_NO_THROW(allocate(cpu, 0));
  }
  EXPECT_NO_THROW(allocate(sim, 1 << 19));  // freed memory is available again
  *values = 100;
  EXPECT_THROW(allocate(cpu, (1 << 19) - 99), Error);
  EXPECT_NO_THROW(allocate(cpu, (1 << 19) - 100));
  *values = 1 << 30;  // more than the whole limit
  EXPECT_THROW(allocate(cpu, 1), Error);
}

TEST(MemoryLimit, IsOffByDefault) {
  OneRank rank;
  EXPECT_NO_THROW(allocate(cpu, std::size_t{1} << 28));
  limit_memory({.bytes = 100});
  EXPECT_THROW(allocate(cpu, 101), Error);
  limit_memory({});
  EXPECT_NO_THROW(allocate(cpu, 101));
  EXPECT_EQ(memory_in_use(), 0);
}

// ---- stand-ins
TEST(StandInMemory, IsCountedOnRequestAndHasNoBytes) {
  OneRank rank;
  const Device stand_in{Kind::meta, 1}, meta{Kind::meta, 0};
  constexpr std::size_t much = std::size_t{1} << 40;  // more than any machine of today has
  limit_memory({.bytes = 2 * static_cast<std::int64_t>(much)});
  const MemoryPtr before = allocate(stand_in, much, Purpose::parameter);
  EXPECT_EQ(memory_stats().current_total, 0);
  count_stand_ins(true);
  EXPECT_FALSE(is_counted(meta));
  const MemoryPtr uncounted = allocate(meta, 4 * much, Purpose::parameter);  // beyond the limit, which counts no meta
  repurpose(*uncounted, Purpose::gradient);
  EXPECT_EQ(memory_stats().current_total, 0);
  EXPECT_EQ(memory_stats().num_allocations, 0);
  {
    const MemoryPtr block = allocate(stand_in, much, Purpose::parameter);
    EXPECT_EQ(block->bytes(), much);
    EXPECT_EQ(block->device(), stand_in);
    EXPECT_EQ(current(Purpose::parameter), static_cast<std::int64_t>(much));
    repurpose(*block, Purpose::gradient);
    EXPECT_EQ(current(Purpose::parameter), 0);
    EXPECT_EQ(current(Purpose::gradient), static_cast<std::int64_t>(much));
    const MemoryPtr on_cpu = allocate(cpu, 64, Purpose::gradient);
    EXPECT_EQ(memory_stats().peak_total, static_cast<std::int64_t>(much) + 64);
    EXPECT_THAT(message_of([&] { allocate(stand_in, much, Purpose::gathered); }), HasSubstr("out of memory on meta"));
  }
  EXPECT_EQ(memory_stats().current_total, 0);
  EXPECT_EQ(peak(Purpose::gradient), static_cast<std::int64_t>(much) + 64);
}

}  // namespace
}  // namespace lockstep::device
