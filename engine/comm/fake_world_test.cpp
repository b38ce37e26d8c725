#include "engine/comm/fake_world.hpp"

#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FakeWorld, HasTheGroupsOfTheWholeWorld) {
  FakeWorld world(17, 4096);
  const RankScope scope(world.context());
  EXPECT_EQ(world_group().size(), 4096);
  EXPECT_EQ(world_group().rank(), 17);
  ProcessGroup& group = group_of({4095, 17, 3}, "dp");
  EXPECT_EQ(group.rank(), 1);
  EXPECT_EQ(group.size(), 3);
  EXPECT_EQ(group.axis(), "dp");
  EXPECT_EQ(&group, &group_of({4095, 17, 3}, "dp"));
  EXPECT_THAT(message_of([] { group_of({1, 2}); }), HasSubstr("rank 17 is not a member"));
  EXPECT_THAT(message_of([] { group_of({17, 4096}); }), HasSubstr("not in a world of 4096"));
}

// Each call says which one it is, and no call waits.
TEST(FakeWorld, RefusesWhatNeedsPeers) {
  FakeWorld world(2, 8);
  const RankScope scope(world.context());
  ProcessGroup& group = group_of({2, 5});
  const Tensor tensor = ones({4}, DType::float32, device::Device{}),
               twice = ones({8}, DType::float32, device::Device{});
  const auto begin = std::chrono::steady_clock::now();
  const auto alone = AllOf(HasSubstr("rank 2 of 8 runs alone"), HasSubstr("no peer takes part"));
  EXPECT_THAT(message_of([&] { all_reduce(group, tensor, ReduceOp::sum, {.owner = "net.0"}); }),
              AllOf(HasSubstr("all_reduce for net.0"), alone));
  EXPECT_THAT(message_of([&] { all_gather(group, twice, tensor); }), AllOf(HasSubstr("all_gather"), alone));
  EXPECT_THAT(message_of([&] { broadcast(group, tensor, 0); }), AllOf(HasSubstr("broadcast"), alone));
  EXPECT_THAT(message_of([&] { send(group, tensor, 1); }), AllOf(HasSubstr("send"), alone));
  EXPECT_THAT(message_of([&] { receive(group, tensor, 1); }), AllOf(HasSubstr("receive"), alone));
  EXPECT_THAT(message_of([&] { barrier(group); }), AllOf(HasSubstr("barrier"), alone));
  EXPECT_THAT(message_of([&] { exchange(group, "mine"); }), AllOf(HasSubstr("exchange"), alone));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_TRUE(log().empty());
  EXPECT_EQ(transport_bytes(), 0);
}

TEST(FakeWorld, RunsCollectivesInAWorldOfOne) {
  FakeWorld world(0, 1);
  const RankScope scope(world.context());
  const Tensor tensor = full({3}, 2.0, DType::float32, device::Device{});
  all_reduce(world_group(), tensor, ReduceOp::sum);
  EXPECT_EQ(log().size(), 1U);
  EXPECT_EQ(exchange(world_group(), "mine"), std::vector<std::string>{"mine"});
}

TEST(FakeWorld, RefusesRanksOutsideTheWorld) {
  EXPECT_THROW(FakeWorld(4, 4), Error);
  EXPECT_THROW(FakeWorld(-1, 4), Error);
  for (const int world_size : {0, FakeWorld::max_world_size + 1}) {
    try {
      FakeWorld world(0, world_size);
      ADD_FAILURE() << "a world of " << world_size << " ranks";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), str("a fake world of ", world_size, " ranks"));
    }
  }
}

struct Pages {
  std::int64_t mapped = 0, resident = 0;
};

Pages pages_of_process() {
  std::ifstream file("/proc/self/statm");
  Pages pages;
  file >> pages.mapped >> pages.resident;
  return pages;
}

// Whether a process can make the world whose heap may grow by so much.
bool fits_into(std::size_t mebibytes, int world_size) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::ifstream file("/proc/self/statm");
    rlim_t pages[6] = {};
    for (rlim_t& each : pages) file >> each;  // the sixth is the heap with the stack
    const rlim_t bytes = pages[5] * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{mebibytes} << 20);
    const rlimit limit{bytes, bytes};
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(2);
    try {
      FakeWorld world(world_size - 1, world_size);
      const RankScope scope(world.context());
      ::_exit(world_group().size() == world_size ? 0 : 3);
    } catch (const Error&) {
      ::_exit(1);
    }
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 1)) << status;
  return status == 0;
}

// The harness limits the heap of a rank's process, for which private memory counts.
TEST(FakeWorld, TakesLittleOfTheLimitOnTheHeap) {
  EXPECT_TRUE(fits_into(64, 4096));
  EXPECT_TRUE(fits_into(64, 65));
  EXPECT_TRUE(fits_into(64, 2));
  EXPECT_TRUE(fits_into(160, 64));
  EXPECT_FALSE(fits_into(16, 64)) << "the memory of a small world is private";
}

TEST(FakeWorld, CostsWhatIsUsed) {
  const std::int64_t before = pages_of_process().resident;
  FakeWorld world(FakeWorld::max_world_size - 1, FakeWorld::max_world_size);
  const RankScope scope(world.context());
  std::vector<int> members(1024);
  std::iota(members.begin(), members.end(), FakeWorld::max_world_size - 1024);
  EXPECT_EQ(group_of(members).rank(), 1023);
  EXPECT_LT((pages_of_process().resident - before) * ::sysconf(_SC_PAGESIZE), 16 << 20);
}

TEST(FakeWorld, GivesItsMemoryBack) {
  { FakeWorld first(0, 64); }
  const std::int64_t before = pages_of_process().mapped;
  for (int i = 0; i < 4; ++i) FakeWorld world(0, 64);
  EXPECT_LT((pages_of_process().mapped - before) * ::sysconf(_SC_PAGESIZE), 16 << 20) << "less than one of them has";
}

}  // namespace
}  // namespace lockstep::comm
