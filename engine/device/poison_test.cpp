#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/order.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void nothing(const Pointers&) {}

class Poison : public testing::TestWithParam<Kind> {
 protected:
  Stream& compute() { return stream({GetParam(), 0}, Role::compute); }
  MemoryPtr block() {
    MemoryPtr memory = allocate({GetParam(), 0}, 64);
    memory->label = "fc1.weight";
    return memory;
  }

 private:
  OneRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Devices, Poison, testing::Values(Kind::cpu, Kind::sim),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST_P(Poison, FillsWriteOnlyRanges) {
  const MemoryPtr memory = block(), input = block();
  std::byte bytes[64] = {};
  write_from_host(*memory, 0, bytes, 64);
  write_from_host(*input, 0, bytes, 64);
  set_poison(true);
  launch(compute(), "writes half", {Access{memory.get(), 0, 64, Mode::write}, Access{input.get(), 0, 64, Mode::update}},
         [](const Pointers& p) { std::memset(p.at(0), 7, 32); });
  read_to_host(bytes, *memory, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[31]), 7);
  EXPECT_EQ(static_cast<int>(bytes[32]), 0xff);
  read_to_host(bytes, *input, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[0]), 0);
}

TEST_P(Poison, FillsARangeBesideOneThatIsRead) {
  const MemoryPtr memory = block();
  set_poison(true);
  for (const std::size_t written : {0, 32}) {
    const std::size_t read = 32 - written;
    std::byte bytes[64] = {};
    write_from_host(*memory, 0, bytes, 64);
    launch(compute(), "writes a part",
           {Access{memory.get(), written, 32, Mode::write}, Access{memory.get(), read, 32, Mode::read}},
           [](const Pointers& p) { std::memset(p.at(0), 7, 16); });
    read_to_host(bytes, *memory, 0, 64);
    EXPECT_EQ(static_cast<int>(bytes[written + 15]), 7) << written;
    EXPECT_EQ(static_cast<int>(bytes[written + 16]), 0xff) << written;
    EXPECT_EQ(static_cast<int>(bytes[written + 31]), 0xff) << written;
    EXPECT_EQ(static_cast<int>(bytes[read]), 0) << written;
    EXPECT_EQ(static_cast<int>(bytes[read + 31]), 0) << written;
  }
}

TEST_P(Poison, FindsAWriteDeclaredAsRead) {
  const MemoryPtr memory = block();
  std::byte bytes[64] = {};
  write_from_host(*memory, 0, bytes, 64);
  set_poison(true);
  const auto run = [&](Mode mode) {
    launch(compute(), "sneaky", {Access{memory.get(), 0, 64, mode}},
           [](const Pointers& p) { p.at(0)[63] = std::byte{1}; });
    compute().synchronize();
  };
  EXPECT_NO_THROW(run(Mode::update));
  write_from_host(*memory, 0, bytes, 64);
  try {
    run(Mode::read);
    FAIL() << "not caught";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("`sneaky`"), HasSubstr("fc1.weight")));
  }
}

TEST_P(Poison, LeavesInPlaceOperandsUnchanged) {
  const MemoryPtr memory = block();
  std::byte bytes[64] = {};
  bytes[5] = std::byte{3};
  write_from_host(*memory, 0, bytes, 64);
  set_poison(true);
  launch(compute(), "in place", {Access{memory.get(), 0, 64, Mode::read}, Access{memory.get(), 0, 64, Mode::write}},
         [](const Pointers& p) { p.at(1)[6] = p.at(0)[5]; });
  read_to_host(bytes, *memory, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[5]), 3);
  EXPECT_EQ(static_cast<int>(bytes[6]), 3);
}

TEST_P(Poison, CoversDeferredLaunches) {
  const MemoryPtr memory = block(), out = block();
  std::byte bytes[64] = {};
  write_from_host(*memory, 0, bytes, 64);
  write_from_host(*out, 0, bytes, 64);
  set_poison(true);
  const Access accesses[] = {{memory.get(), 0, 64, Mode::read}, {out.get(), 0, 64, Mode::write}};
  launch_deferred(compute(), "collective", accesses, nothing, [](const Pointers& p) { p.at(1)[0] = std::byte{1}; });
  read_to_host(bytes, *out, 0, 64);
  EXPECT_EQ(static_cast<int>(bytes[0]), 1);
  EXPECT_EQ(static_cast<int>(bytes[1]), 0xff);
  launch_deferred(compute(), "sneaky", accesses, nothing, [](const Pointers& p) { p.at(0)[0] = std::byte{1}; });
  EXPECT_THROW(compute().synchronize(), Error);
}

// The first byte after a launch, half of a launch or collective that fails, with or without a write before.
TEST_P(Poison, LeavesTheBytesWhereAFailedLaunchWroteNothing) {
  const MemoryPtr out = block();
  std::byte bytes[64] = {};
  bytes[0] = std::byte{5};
  const Access accesses[] = {{out.get(), 0, 64, Mode::write}};
  const auto fails = [](bool writes) {
    return [writes](const Pointers& p) {
      if (writes) p.at(0)[1] = std::byte{1};
      throw Error("no peer", "");
    };
  };
  const auto first_byte_after = [&](const auto& issue) {
    write_from_host(*out, 0, bytes, 64);
    set_poison(true);
    EXPECT_THROW(
        {
          issue();
          compute().synchronize();
        },
        Error);
    set_poison(false);
    clear_failures();
    std::byte now[64];
    read_to_host(now, *out, 0, 64);
    return static_cast<int>(now[0]);
  };
  for (const bool writes : {false, true}) {
    const int expected = writes ? 0xff : 5;
    EXPECT_EQ(first_byte_after([&] { launch(compute(), "whole", accesses, fails(writes)); }), expected);
    EXPECT_EQ(first_byte_after([&] { launch_deferred(compute(), "first", accesses, fails(writes), nothing); }),
              expected);
    EXPECT_EQ(first_byte_after([&] { launch_deferred(compute(), "second", accesses, nothing, fails(writes)); }),
              expected);
  }
}

// A large range is compared in pieces.
TEST_P(Poison, KeepsTheByteThatAFailedLaunchWroteToALargeRange) {
  constexpr std::size_t bytes = 200'000;
  const MemoryPtr out = allocate(compute().device(), bytes);
  for (const std::size_t written : {std::size_t{0}, bytes / 2, bytes - 1}) {
    set_poison(true);
    const auto fails = [written](const Pointers& p) {
      p.at(0)[written] = std::byte{1};
      throw Error("no peer", "");
    };
    EXPECT_THROW(
        {
          launch(compute(), "fails", {full_access(out, Mode::write)}, fails);
          compute().synchronize();
        },
        Error);
    set_poison(false);
    clear_failures();
    std::byte now{};
    read_to_host(&now, *out, written, 1);
    EXPECT_EQ(static_cast<int>(now), 1) << written;
  }
}

}  // namespace
}  // namespace lockstep::device
