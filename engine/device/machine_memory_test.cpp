#include "engine/device/machine_memory.hpp"

#include <filesystem>
#include <fstream>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/device.hpp"
#include "engine/device/pool.hpp"

namespace lockstep::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MachineMemory : public testing::Test {
 protected:
  MachineMemory() : root_(std::filesystem::temp_directory_path() / str("lockstep_memory_", ::getpid())) {}
  ~MachineMemory() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::size_t available() const { return available_memory(root_.string()); }

 private:
  std::filesystem::path root_;
};

TEST_F(MachineMemory, ReadsMemAvailable) {
  EXPECT_EQ(available(), std::numeric_limits<std::size_t>::max());  // no file can be read
  write("proc/meminfo", "MemTotal:  2000 kB\nHugePages_Total:  0\nMemAvailable:  1000 kB\n");
  EXPECT_EQ(available(), std::size_t{1024000});
}

TEST_F(MachineMemory, AppliesTheControlGroupLimit) {
  write("proc/meminfo", "MemAvailable:  1000 kB\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(available(), std::size_t{1024000});
  write("sys/fs/cgroup/memory.max", "7000\n");
  EXPECT_EQ(available(), std::size_t{2000});
  write("sys/fs/cgroup/memory.current", "9000\n");
  EXPECT_EQ(available(), std::size_t{0});
}

TEST_F(MachineMemory, LimitsTheArena) {
  const std::size_t beyond = available_memory() + (std::size_t{1} << 30);
  Arena arena = Arena::map_private(beyond + (std::size_t{1} << 30));
  EXPECT_EQ(arena.extend(beyond), nullptr);
  EXPECT_EQ(arena.used_bytes(), std::size_t{0});
  EXPECT_NE(arena.extend(std::size_t{1} << 20), nullptr);
}

TEST_F(MachineMemory, IsReportedInMessages) {
  RankContext context(0, 1);
  const RankScope scope(context);
  for (const std::size_t bytes : {std::size_t{1} << 62, ~std::size_t{0}}) {
    try {
      allocate(Device{}, bytes);
      FAIL() << bytes << " bytes were allocated";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("out of memory on cpu"), HasSubstr("the machine has")));
    }
  }
}

}  // namespace
}  // namespace lockstep::device
