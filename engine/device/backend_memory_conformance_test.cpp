// What every backend promises about memory, copies and its capabilities (backend_promises.hpp).
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "engine/device/arena.hpp"
#include "engine/device/backend_promises.hpp"
#include "engine/device/memory_limit.hpp"
#include "engine/device/order.hpp"
#include "engine/device/protection.hpp"
#include "engine/device/stand_in_memory.hpp"

namespace lockstep::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uintptr_t page = 4096;

// The address that a launch is given; null if it does not run.
std::byte* address_in_launch(const MemoryPtr& memory) {
  std::byte* address = nullptr;
  launch(current_stream(memory->device()), "keeps its pointer", {full_access(memory, Mode::update)},
         [&](const Pointers& p) { address = p.at(0); });
  current_stream(memory->device()).synchronize();
  return address;
}

bool is_multiple(const std::byte* address, std::uintptr_t of) {
  return reinterpret_cast<std::uintptr_t>(address) % of == 0;
}

// ---- memory
TEST_P(BackendPromises, GiveAlignedMemoryThatStepsUseAgain) {
  for (int step = 0; step < 4; ++step) {
    const std::int64_t misses = memory_stats().num_pool_misses;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20}) {
      const std::byte* const address = address_in_launch(allocate(device(), bytes));
      EXPECT_EQ(address != nullptr, can().computes);
      EXPECT_TRUE(is_multiple(address, 64));
    }
    EXPECT_TRUE(step == 0 || memory_stats().num_pool_misses == misses) << "in step " << step;
  }
  EXPECT_EQ(memory_stats().current_total, 0);
}

TEST_P(BackendPromises, KeepBlocksApart) {
  const MemoryPtr a = block_with("aaaaaaaa"), b = block_with("bbbbbbbb"), c = block_with("cccccccc");
  expect_text(a, "aaaaaaaa");
  expect_text(b, "bbbbbbbb");
  expect_text(c, "cccccccc");
}

TEST_P(BackendPromises, RefuseMoreMemoryThanThereIs) {
  const Device counted = can().computes ? device() : Device{GetParam(), 1};  // index 1: a stand-in
  count_stand_ins(true);
  if (!can().computes) limit_memory({.bytes = std::int64_t{1} << 40});  // it has no other end
  const std::string message = message_of([&] { allocate(counted, std::size_t{1} << 50, Purpose::gathered); });
  EXPECT_THAT(message, AllOf(HasSubstr("out of memory on " + to_text(counted)), HasSubstr("1125899906842624 bytes"),
                             HasSubstr("gathered")));
  EXPECT_EQ(allocate(counted, 8)->bytes(), 8U);
}

TEST_P(BackendPromises, CountMemoryByPurpose) {
  const Device counted = can().computes ? device() : Device{GetParam(), 1};
  count_stand_ins(true);
  const auto current = [](Purpose purpose) { return memory_stats().current[static_cast<std::size_t>(purpose)]; };
  {
    const MemoryPtr weight = allocate(counted, 100, Purpose::parameter), sum = allocate(counted, 60, Purpose::gradient);
    EXPECT_EQ(current(Purpose::parameter), 100);
    repurpose(*weight, Purpose::gradient);
    EXPECT_EQ(current(Purpose::parameter), 0);
    EXPECT_EQ(current(Purpose::gradient), 160);
    EXPECT_EQ(memory_stats().num_allocations, 2);
  }
  EXPECT_EQ(memory_stats().current_total, 0);
  EXPECT_EQ(memory_stats().peak_total, 160);
}

// ---- poison (order.hpp)
TEST_P(BackendPromises, PoisonMemoryThatALaunchOnlyWrites) {
  const MemoryPtr written = block_with("abcd"), updated = block_with("efgh"), large = allocate(device(), 200'000);
  set_poison(true);
  launch(
      current_stream(device()), "writes nothing",
      {Access{written.get(), 1, 2, Mode::write}, full_access(updated, Mode::update), full_access(large, Mode::write)},
      [](const Pointers&) {});
  set_poison(false);
  expect_text(written,
              "a\xff\xff"
              "d");
  expect_text(updated, "efgh");
  expect_text(large, std::string(200'000, '\xff'));
}

TEST_P(BackendPromises, PoisonMemoryOfTheHostThatACopyWrites) {
  if (!can().computes) GTEST_SKIP() << "it has no values";
  const MemoryPtr from = block_with("values"), to = allocate(cpu, 6);
  set_poison(true);
  copy_bytes(current_stream(device()), full_access(to, Mode::write), full_access(from, Mode::read));
  synchronize_all();
  set_poison(false);
  expect_text(to, "values");
}

TEST_P(BackendPromises, FindAWriteToMemoryThatALaunchOnlyReads) {
  if (can().computes && !can().runs_on_host) GTEST_SKIP() << "its memory is written by kernels only";
  const MemoryPtr large = allocate(device(), 200'000);
  large->label = "fc1.weight";
  write_from_host(*large, 0, std::string(200'000, 'x').data(), 200'000);
  set_poison(true);
  const std::string message = message_of([&] {
    launch(current_stream(device()), "writes", {full_access(large, Mode::read)},
           [](const Pointers& p) { p.at(0)[150'000] = std::byte{'y'}; });
    synchronize_all();
  });
  EXPECT_THAT(message, HasSubstr(can().computes ? "changed bytes 0..200000 of fc1.weight" : "nothing was thrown"));
  clear_failures();
}

// ---- copies
TEST_P(BackendPromises, CopyRangesBetweenBlocks) {
  const MemoryPtr from = block_with("...collectives"), to = block_with("0123456789abcdefghijkl");
  copy_bytes(current_stream(device()), {to.get(), 10, 11, Mode::write}, {from.get(), 3, 11, Mode::read});
  expect_text(to, "0123456789collectivesl");
  write_from_host(*to, 1, "**", 2);
  expect_text(to, "0**3456789collectivesl");
  EXPECT_THAT(message_of([&] {
                copy_bytes(current_stream(device()), {to.get(), 0, 4, Mode::write}, {from.get(), 0, 5, Mode::read});
              }),
              AllOf(HasSubstr("5 bytes into 4 bytes"), HasSubstr(to_text(device()))));
}

TEST_P(BackendPromises, CopyToAndFromTheHostAfterEarlierLaunches) {
  const std::string text = "sixteen letters!";
  const MemoryPtr host = allocate(cpu, 16), there = allocate(device(), 16), back = allocate(cpu, 16);
  Stream& compute = current_stream(device());
  delay(compute, 5.0);
  launch_deferred(
      current_stream(cpu), "fills", std::vector<Access>{full_access(host, Mode::write)}, [](const Pointers&) {},
      [&](const Pointers& p) { std::memcpy(p.at(0), text.data(), text.size()); });
  copy(compute, there, host);
  if (!can().computes) {
    EXPECT_THAT(message_of([&] { copy(compute, back, there); }),
                AllOf(HasSubstr("copy on meta/compute"), HasSubstr("no values")));
    return;
  }
  copy(compute, back, there);
  current_stream(cpu).wait(compute.record());
  expect_text(back, text);
  EXPECT_TRUE(order_violations().empty()) << order_violations()[0].message;
}

// ---- pinned memory
TEST_P(BackendPromises, GivePinnedMemoryOnTheHostInWholePages) {
  for (int step = 0; step < 3; ++step) {
    const std::int64_t misses = memory_stats().num_pool_misses;
    const MemoryPtr a = allocate_pinned(device(), 100, Purpose::optimizer), b = allocate_pinned(device(), 5000);
    for (const MemoryPtr& block : {a, b}) {
      EXPECT_EQ(block->device(), host_device);
      EXPECT_TRUE(block->pinned() && block->pinned_for(GetParam()));
      EXPECT_FALSE(block->pinned_for(GetParam() == Kind::cpu ? Kind::sim : Kind::cpu));
      EXPECT_TRUE(is_multiple(address_in_launch(block), page));
    }
    EXPECT_EQ(a->purpose(), Purpose::optimizer);
    EXPECT_EQ(memory_stats().current[static_cast<std::size_t>(Purpose::optimizer)], 100);
    EXPECT_EQ(memory_stats().current_total, 5100);
    EXPECT_TRUE(step == 0 || memory_stats().num_pool_misses == misses) << "in step " << step;
    write_from_host(*a, 3, "pinned", 6);
    address_in_launch(a)[9] = std::byte{'!'};  // host code touches it at any time
    std::string read(7, ' ');
    read_to_host(read.data(), *a, 3, 7);
    EXPECT_EQ(read, "pinned!");
  }
  EXPECT_EQ(memory_stats().current_total, 0);
  EXPECT_EQ(memory_stats().peak_total, 5100);
  EXPECT_FALSE(allocate(cpu, 8)->pinned());
}

TEST_P(BackendPromises, RefuseMorePinnedMemoryThanThereIs) {
  const std::string message =
      message_of([&] { allocate_pinned(device(), std::size_t{1} << 50, Purpose::communication); });
  EXPECT_THAT(message, AllOf(HasSubstr("out of memory on cpu"), HasSubstr("communication"),
                             HasSubstr(str("pinned for ", name_of(GetParam())))));
  EXPECT_EQ(allocate_pinned(device(), 8)->bytes(), 8U);
}

TEST_P(BackendPromises, CopyPinnedMemoryWithoutAWaitOfTheHost) {
  const MemoryPtr pinned = allocate_pinned(device(), 8), there = block_with("........");
  write_from_host(*pinned, 0, "eight ch", 8);
  Stream& side = stream(device(), Role::copy_in);
  side.wait(current_stream(device()).record());
  std::atomic<bool> released = false;
  const auto block = [&](const Pointers&) {
    while (!released) std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  if (!can().runs_inline) launch_deferred(side, "blocks", {}, block, [](const Pointers&) {});
  copy(side, there, pinned);  // returns although the stream is blocked
  released = true;
  current_stream(device()).wait(side.record());
  expect_text(there, "eight ch");
}

// ---- capabilities
TEST_P(BackendPromises, CopyPageableMemoryAsynchronouslyWhereTheySaySo) {
  const MemoryPtr pageable = allocate(cpu, 8), there = block_with("........");
  write_from_host(*pageable, 0, "eight ch", 8);
  Stream& side = stream(device(), Role::copy_in);
  side.wait(current_stream(device()).record());
  std::atomic<bool> ran = false;
  delay(side, 100.0);
  launch(side, "late", {}, [&](const Pointers&) { ran = true; });
  copy(side, there, pageable);
  EXPECT_EQ(ran, can().computes && !can().copies_pageable_async);
  current_stream(device()).wait(side.record());
  expect_text(there, "eight ch");
}

TEST_P(BackendPromises, ComputeWhereTheySaySo) {
  const MemoryPtr memory = block_with("values");
  bool ran = false;
  launch(current_stream(device()), "runs", {full_access(memory, Mode::read)}, [&](const Pointers&) { ran = true; });
  synchronize_all();
  EXPECT_EQ(ran, can().computes);
  expect_text(memory, "values");  // or the error of reading what has no values
}

TEST_P(BackendPromises, RunInlineWhereTheySaySo) {
  Stream& compute = current_stream(device());
  EXPECT_EQ(compute.runs_inline(), can().runs_inline);
  std::atomic<bool> released = false;
  std::atomic<int> num_run = 0;
  if (!compute.runs_inline())
    launch_deferred(
        compute, "blocks", {},
        [&](const Pointers&) {
          while (!released) std::this_thread::sleep_for(std::chrono::microseconds(100));
        },
        [](const Pointers&) {});
  launch(compute, "counts", {}, [&](const Pointers&) { ++num_run; });
  EXPECT_EQ(num_run, can().runs_inline ? 1 : 0);
  released = true;
  compute.synchronize();
  EXPECT_EQ(num_run, can().computes ? 1 : 0);
}

TEST_P(BackendPromises, LetTheHostTouchTheirMemoryWhereTheySaySo) {
  const MemoryPtr memory = block_with("touch me");
  std::byte* const address = address_in_launch(memory);
  if (can().host_can_touch) {
    address[0] = std::byte{'T'};
    expect_text(memory, "Touch me");
  } else if (can().computes && protection() != Protection::off && !stand_in_.is_used()) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(address[0] = std::byte{'T'}, "");
  } else {
    EXPECT_EQ(address == nullptr, !can().computes);
  }
}

TEST_P(BackendPromises, GiveBodiesAddressesOfTheHostWhereTheySaySo) {
  const MemoryPtr memory = block_with("see");
  std::string seen = "not";
  launch(current_stream(device()), "looks", {full_access(memory, Mode::read)}, [&](const Pointers& p) {
    if (can().runs_on_host) std::memcpy(seen.data(), p.at(0), 3);
  });
  synchronize_all();
  EXPECT_EQ(seen, can().runs_on_host ? "see" : "not");
}

// Rank 1 looks at the address that rank 0 had.
TEST_P(BackendPromises, ShareMemoryWithPeersWhereTheySaySo) {
  const auto world = HostWorld::create(2, Sharing::threads, 1 << 20, 1 << 16);
  RankContext first(0, 2, world.get()), second(1, 2, world.get());
  const RankScope scope(first);
  const MemoryPtr memory = block_with("shared");
  const std::byte* const address = address_in_launch(memory);
  EXPECT_EQ(world->arena(GetParam(), 0).contains(address), can().shared_with_peers);
  EXPECT_FALSE(world->arena(GetParam(), 1).contains(address));
  if (!can().shared_with_peers) return;
  const RankScope as_peer(second);
  std::string seen(6, ' ');
  launch(current_stream(device()), "looks", {}, [&](const Pointers&) { std::memcpy(seen.data(), address, 6); });
  synchronize_all();
  EXPECT_EQ(seen, "shared");
}

TEST_P(BackendPromises, HaveAnIndexPerRankWhereTheySaySo) {
  RankContext second(1, 2);
  const RankScope scope(second);
  const std::string name(name_of(GetParam()));
  EXPECT_EQ(device_from_name(name).index, can().has_index ? 1 : 0);
  EXPECT_EQ(to_text({GetParam(), 1}), can().has_index ? name + ":1" : name);
  EXPECT_THAT(message_of([&] { device_from_name(name + ":1"); }),
              HasSubstr(can().has_index ? "nothing was thrown" : "has only one"));
}

}  // namespace
}  // namespace lockstep::device
