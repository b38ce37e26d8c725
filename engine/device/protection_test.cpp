#include "engine/device/protection.hpp"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "engine/device/fault.hpp"
#include "engine/device/pool.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {
namespace {

using testing::HasSubstr;

// The address that a launch sees. Keeping it is the mistake that the protection finds.
std::byte* address_in_launch(const MemoryPtr& memory) {
  std::byte* address = nullptr;
  launch(current_stream(memory->device()), "leaks its pointer", {full_access(memory, Mode::write)},
         [&](const Pointers& p) { address = p.at(0); });
  current_stream(memory->device()).synchronize();
  return address;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool has_sanitizer = true;  // reads all memory, so nothing is closed
#else
constexpr bool has_sanitizer = false;
#endif

// The value of LOCKSTEP_PROTECT_SIM.
std::string wanted() {
  const char* const text = std::getenv("LOCKSTEP_PROTECT_SIM");
  return text == nullptr ? "" : text;
}

class ProtectionDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (wanted() == "pages" && !has_sanitizer) {
      ASSERT_EQ(protection(), Protection::pages);
    }
    if (protection() == Protection::off) GTEST_SKIP() << "this processor has no protection keys";
  }
};

TEST_F(ProtectionDeathTest, EndsHostWritesAndReadsOutsideLaunches) {
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 64);
  std::byte* const address = address_in_launch(memory);
  EXPECT_DEATH(address[8] = std::byte{1}, "");
  EXPECT_DEATH(std::exit(static_cast<int>(address[8])), "");
  EXPECT_DEATH(std::thread([&] { address[8] = std::byte{1}; }).join(), "");
}

TEST_F(ProtectionDeathTest, LeavesMemoryOfTheCpuAlone) {
  OneRank rank;
  const MemoryPtr memory = allocate(cpu, 64);
  std::byte* const address = address_in_launch(memory);
  address[8] = std::byte{7};
  EXPECT_EQ(address[8], std::byte{7});
}

TEST_F(ProtectionDeathTest, ScopesNestAndEnd) {
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 64);
  std::byte* const address = address_in_launch(memory);
  {
    const OpenMemory outer;
    { const OpenMemory inner; }
    address[8] = std::byte{7};
    EXPECT_EQ(address[8], std::byte{7});
  }
  EXPECT_DEATH(address[8] = std::byte{1}, "");
}

TEST_F(ProtectionDeathTest, ThreadsOfAKernelGetTheRightsOfItsLaunch) {
  if (protection() != Protection::keys) GTEST_SKIP() << "threads have rights of their own with protection keys only";
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 64);
  EXPECT_FALSE(has_rights_of_its_own());
  // The thread is older than the launch, like those of a pool: a new one has the rights of the thread that starts it.
  const auto launch_with = [&memory](bool hands_rights) {
    std::promise<std::function<void()>> work;
    std::thread helper([&work] { work.get_future().get()(); });
    launch(current_stream(sim), "helped", {full_access(memory, Mode::write)}, [&](const Pointers& p) {
      const bool open = has_rights_of_its_own() && hands_rights;
      work.set_value([open, to = p.as<int>(0)] { with_rights(open, [to] { *to = 7; }); });
      helper.join();
    });
  };
  launch_with(true);
  int value = 0;
  read_to_host(&value, *memory, 0, sizeof value);
  EXPECT_EQ(value, 7);
  EXPECT_DEATH(launch_with(false), "");
}

TEST_F(ProtectionDeathTest, AThreadThatOpensTheMemoryHasRightsOfItsOwnWithKeysOnly) {
  EXPECT_FALSE(has_rights_of_its_own());
  const OpenMemory open;
  EXPECT_EQ(has_rights_of_its_own(), protection() == Protection::keys);
}

TEST_F(ProtectionDeathTest, CopiesAndHostAccessesStillWork) {
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 64);
  const int written = 42;
  write_from_host(*memory, 4, &written, sizeof written);
  int back = 0;
  read_to_host(&back, *memory, 4, sizeof back);
  EXPECT_EQ(back, 42);
}

TEST_F(ProtectionDeathTest, FaultsNameTheBlockAndTheLine) {
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 64, Purpose::parameter);
  std::byte* const address = address_in_launch(memory);
  char text[200];
  describe_fault(address + 8, text, sizeof text);
  EXPECT_STREQ(text, "host code touched byte 8 of a block of 64 bytes (parameter) on sim:0 outside a launch");
  memory->label = "fc1.weight";
  RankContext::current().scenario_line = 1;
  describe_fault(address + 63, text, sizeof text);
  EXPECT_STREQ(
      text, "host code touched byte 63 of fc1.weight (parameter) on sim:0 outside a launch, at line 1 of the scenario");
  RankContext::current().scenario_line = 12;
  // A thread without a rank.
  std::thread([&] { describe_fault(address + 63, text, sizeof text); }).join();
  EXPECT_STREQ(text, "host code touched memory of sim outside a launch");
  describe_fault(address + (std::size_t{1} << 21), text, sizeof text);
  EXPECT_STREQ(text, "host code touched memory of sim outside a launch, at line 12 of the scenario");
  describe_fault(text, text, sizeof text);
  EXPECT_STREQ(text, "");
}

TEST_F(ProtectionDeathTest, ARegionThatIsAddedWithinAScopeClosesWithIt) {
  OneRank rank;
  const MemoryPtr memory = allocate(sim, 64);
  std::byte* const address = address_in_launch(memory);
  const Arena added = Arena::map_private(std::size_t{1} << 16);
  {
    const OpenMemory open;
    protect(added.area());
    address[8] = std::byte{7};
    added.area().base[8] = std::byte{7};
  }
  EXPECT_DEATH(address[8] = std::byte{1}, "");
  EXPECT_DEATH(added.area().base[8] = std::byte{1}, "");
}

TEST_F(ProtectionDeathTest, ARegionThatIsAddedAgainTakesNoFurtherRoom) {
  const Arena first = Arena::map_private(std::size_t{1} << 16), second = Arena::map_private(std::size_t{1} << 16);
  for (int i = 0; i < 1100; ++i) protect(first.area());  // there is room for 1024
  protect(second.area());
  EXPECT_NE(protected_region_with(second.area().base).base, nullptr);
}

TEST_F(ProtectionDeathTest, FurtherRegionsThanThereIsRoomForAreLeftAlone) {
  constexpr std::size_t bytes = 4096;
  constexpr int num = 1100;  // there is room for 1024
  const Arena all = Arena::map_private(num * bytes);
  const auto region = [&](int i) {
    return HostWorld::Region{all.area().base + static_cast<std::size_t>(i) * bytes, bytes};
  };
  for (int i = 0; i < num; ++i) protect(region(i));
  EXPECT_NE(protected_region_with(region(1000).base).base, nullptr);
  for (int i = 1024; i < num; ++i) EXPECT_EQ(protected_region_with(region(i).base).base, nullptr) << i;
  region(num - 1).base[0] = std::byte{1};
  EXPECT_EQ(region(num - 1).base[0], std::byte{1});
}

TEST_F(ProtectionDeathTest, OnlyTheRegionsAmongTheAddressesAreForgotten) {
  constexpr std::size_t bytes = 4096;
  const Arena all = Arena::map_private(5 * bytes);
  const auto at = [&](std::size_t i) { return all.area().base + i * bytes; };
  const auto are_kept = [&] {
    std::string kept;
    for (std::size_t i = 0; i < 5; ++i) kept += protected_region_with(at(i)).base == nullptr ? '0' : '1';
    return kept;
  };
  for (std::size_t i = 0; i < 5; ++i) protect({at(i), bytes});
  EXPECT_EQ(are_kept(), "11111");
  forget_protected(at(1), 2 * bytes);
  EXPECT_EQ(are_kept(), "10011");
  forget_protected(at(4), bytes);
  EXPECT_EQ(are_kept(), "10010");
  forget_protected(at(0), bytes);
  EXPECT_EQ(are_kept(), "00010");
  forget_protected(at(0), bytes);
  EXPECT_EQ(are_kept(), "00010");
}

TEST_F(ProtectionDeathTest, AWorldThatEndsForgetsTheMemoryOfItsRanks) {
  const std::byte* base = nullptr;
  {
    const auto world = HostWorld::create(2, Sharing::threads, std::size_t{1} << 20, std::size_t{1} << 16);
    protect(world->arena(Kind::sim, 1));
    base = world->arena(Kind::sim, 1).base;
    EXPECT_NE(protected_region_with(base).base, nullptr);
  }
  EXPECT_EQ(protected_region_with(base).base, nullptr);
}

TEST_F(ProtectionDeathTest, AWorldThatCannotBeMappedLeavesOthersProtected) {
  const auto world = HostWorld::create(1, Sharing::threads, std::size_t{1} << 20, std::size_t{1} << 16);
  const HostWorld::Region area = world->arena(Kind::sim, 0);
  protect(area);
  EXPECT_THROW(HostWorld::create(2, Sharing::threads, std::size_t{1} << 50), Error);
  EXPECT_EQ(protected_region_with(area.base).base, area.base);
}

TEST_F(ProtectionDeathTest, PagesThatTheSystemDoesNotCloseEndTheProcess) {
  if (protection() != Protection::pages) GTEST_SKIP() << "a region without a key is merely not protected";
  const Arena arena = Arena::map_private(8192);
  EXPECT_DEATH(protect({arena.area().base + 1, 4096}), "");
}

TEST_F(ProtectionDeathTest, ARegionThatIsForgottenIsNoLongerReported) {
  const std::byte* base = nullptr;
  {
    OneRank rank;
    const MemoryPtr memory = allocate(sim, 64);
    base = address_in_launch(memory);
    EXPECT_NE(protected_region_with(base).base, nullptr);
  }
  EXPECT_EQ(protected_region_with(base).base, nullptr);
}

TEST(ProtectionByName, IsTheOneThatTheEnvironmentNames) {
  const Arena arena = Arena::map_private(std::size_t{1} << 16);
  if (wanted() != "pages") {
    EXPECT_NE(protection(), Protection::pages);
  }
  if (wanted() == "off") {
    EXPECT_EQ(protection(), Protection::off);
  }
  if (wanted() == "words" && !has_sanitizer) {
    EXPECT_THROW(protect(arena.area()), Error);
  } else {
    EXPECT_NO_THROW(protect(arena.area()));
    EXPECT_EQ(protected_region_with(arena.area().base).base != nullptr, protection() != Protection::off);
  }
}

// The kind is chosen once per process. This program runs again, with the tests above.
int run_again(const std::string& kind, const std::string& tests) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      str("LOCKSTEP_PROTECT_SIM=", kind, " '", program, "' --gtest_filter='", tests, "' --gtest_brief=1");
  return std::system(command.c_str());
}

TEST(ProtectionByPages, HoldsOnEveryProcessor) { EXPECT_EQ(run_again("pages", "ProtectionDeathTest.*"), 0); }

TEST(ProtectionInOtherProcesses, IsTheOneThatTheEnvironmentNames) {
  for (const char* const kind : {"off", "keys", "words", "''"})
    EXPECT_EQ(run_again(kind, "ProtectionByName.*"), 0) << kind;
}

}  // namespace
}  // namespace lockstep::device
