#include "engine/device/cuda/stand_in.hpp"

#include <cstdlib>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Asked {
 public:
  explicit Asked(const char* value) { ::setenv(stand_in_variable, value, 1); }
  ~Asked() { ::unsetenv(stand_in_variable); }
};

TEST(StandInOfCuda, IsThereOnlyWhereItIsAskedFor) {
  ::unsetenv(stand_in_variable);
  EXPECT_EQ(gpus_of_stand_in(), 0);
  EXPECT_EQ(stand_in(), nullptr);
  const Asked empty("");
  EXPECT_EQ(gpus_of_stand_in(), 0);
  const Asked asked(stand_in_value);
  EXPECT_EQ(gpus_of_stand_in(), 1);
  ASSERT_NE(stand_in(), nullptr);
  EXPECT_EQ(stand_in(), stand_in()) << "one per process";
  EXPECT_THAT(stand_in()->properties_of(0).name, HasSubstr("stand-in"));
}

TEST(StandInOfCuda, HasTheNumberOfGpusThatIsAskedFor) {
  for (const int gpus : {1, 2, 8, 64}) {
    const Asked asked(str("stand-in:", gpus).c_str());
    EXPECT_EQ(gpus_of_stand_in(), gpus);
  }
  EXPECT_EQ(stand_in_setting(1), "stand-in");
  EXPECT_EQ(stand_in_setting(8), "stand-in:8");
}

TEST(StandInOfCuda, RefusesOtherWords) {
  for (const char* word : {"yes", "stand-in:", "stand-in:0", "stand-in:-1", "stand-in:65", "stand-in:2x", "stand-in2",
                           "stand-in:99999999999", "stand-in: 2"}) {
    const Asked asked(word);
    try {
      gpus_of_stand_in();
      ADD_FAILURE() << "accepted " << word;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(str("LOCKSTEP_CUDA=", word)), HasSubstr("`stand-in:N` (N GPUs, 1 to 64)")));
    }
  }
}

TEST(StandInOfCuda, RunsKernelsWhenTheirStreamIsAwaited) {
  RecordingCalls calls;
  calls.be_lazy();
  const StandIn in_place(calls);
  const StreamHandle stream = calls.create_stream();
  int runs = 0;
  launch_on_stand_in("kernel", stream, [&] { ++runs; });
  EXPECT_EQ(runs, 0);
  wait_for_stand_in("kernel", stream);
  EXPECT_EQ(runs, 1);
}

TEST(StandInOfCuda, NamesTheKernelThatHasNoDevice) {
  ::unsetenv(stand_in_variable);
  try {
    launch_on_stand_in("lockstep::add", nullptr, [] {});
    ADD_FAILURE() << "launched";
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("lockstep::add"), HasSubstr("no Cuda backend")));
  }
}

// CUDA reads pageable memory before the call returns, and pinned memory when the stream gets there.
TEST(StandInOfCuda, ReadsPageableMemoryAtOnceAndPinnedMemoryLater) {
  RecordingCalls calls;
  calls.be_lazy();
  const StreamHandle stream = calls.create_stream();
  auto* const device = static_cast<int*>(calls.allocate(2 * sizeof(int)));
  int pageable = 1, pinned = 1;
  calls.pin(&pinned, sizeof pinned);
  calls.copy(device, &pageable, sizeof(int), stream);
  calls.copy(device + 1, &pinned, sizeof(int), stream);
  pageable = pinned = 2;
  int back[2] = {0, 0};
  calls.copy(back, device, sizeof back, stream);  // to pageable memory: it has run
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[1], 2);
  calls.unpin(&pinned);
  calls.release(device);
}

TEST(StandInOfCuda, RefusesWhatCudaRefusesOfHostMemory) {
  RecordingCalls calls;
  const StreamHandle stream = calls.create_stream();
  auto* const device = static_cast<std::byte*>(calls.allocate(64));
  std::vector<std::byte> pages(64);
  calls.pin(pages.data(), 32);
  EXPECT_NO_THROW(calls.copy(device, pages.data(), 32, stream));
  EXPECT_THROW(calls.copy(device, pages.data(), 64, stream), ResourceError);  // half of it is pinned
  calls.pin(pages.data() + 32, 32);
  EXPECT_THROW(calls.copy(pages.data() + 16, device, 32, stream), ResourceError);  // pinned by two calls
  calls.unpin(pages.data());
  EXPECT_THROW(calls.set_bytes(pages.data(), 1, 16, stream), ResourceError);  // pageable
  calls.unpin(pages.data() + 32);
  calls.release(device);
}

TEST(StandInOfCuda, RefusesCallsInAProcessThatWasForkedAfterTheFirst) {
  const auto works_in_a_child = [](RecordingCalls& calls) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        calls.use_device(0);
        ::_exit(0);
      } catch (const ResourceError&) {
        ::_exit(1);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  RecordingCalls calls;
  calls.require_driver();  // as the launcher does
  EXPECT_TRUE(works_in_a_child(calls));
  calls.use_device(0);
  EXPECT_FALSE(works_in_a_child(calls));
}

TEST(StandInOfCudaDeathTest, EndsHostCodeThatTouchesMemoryOfTheDevice) {
  const auto touch = [] {
    RecordingCalls calls(1, std::size_t{1} << 30, RecordingCalls::Use::program);
    auto* const memory = static_cast<volatile int*>(calls.allocate(1 << 16));
    *memory = 1;
  };
  if (protection() != Protection::keys) GTEST_SKIP() << "this machine has no protection keys";
  EXPECT_DEATH(touch(), "");
}

}  // namespace
}  // namespace lockstep::device::cuda
