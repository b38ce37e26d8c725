// The communicators behind the transport of ranks with a GPU each: when they are made, and what ends them. The results
// are those of every transport (transport_conformance_test.cpp).
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_gpu.hpp"
#include "engine/comm/test_hosts.hpp"
#include "engine/device/place_on_host.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_gpu::gpu;
using testing_gpu::run_on_gpus;
using testing_nccl::RecordingNccl;

constexpr std::int64_t count = 6;

void sum_once(float value) {
  const Tensor x = tensor_of(std::vector<float>(count, value), DType::float32, gpu);
  all_reduce(world_group(), x, ReduceOp::sum);
  const auto size = static_cast<float>(world_group().size());
  for (const float each : values_of<float>(x)) require(each == size * value, "a wrong sum");
}

TEST(Nccl, AddsInTwoStepsOverOneCommunicatorPerStream) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl& nccl) {
    sum_once(1);
    const std::string peer = str(1 - rank);
    const std::vector<std::string> expected = {"create 2", "send 12 to " + peer, "receive 12 from " + peer,
                                               "send 12 to " + peer, "receive 12 from " + peer};
    require(nccl.log(rank) == expected, "other calls");
    for (int i = 0; i < 10; ++i) sum_once(2);
    require(nccl.log(rank).size() == 1 + 11 * 4, "a later collective makes other calls");
    // Another stream, and so another communicator.
    const Tensor all = empty({2 * count}, DType::float32, gpu);
    all_gather(world_group(), all, tensor_of(std::vector<float>(count, 3), DType::float32, gpu), {.async = true})
        .synchronize();
    require(nccl.log(rank)[1 + 11 * 4] == "create 2", "no communicator for the stream of all_gather");
  });
  EXPECT_THAT(failures, Each(""));
}

// On all streams that collectives use, and no collective creates one later.
TEST(Nccl, APreparedGroupHasItsCommunicators) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl& nccl) {
    prepare(world_group(), gpu);
    const std::vector<std::string> four(streams_of_collectives.size(), "create 2");
    require(nccl.log(rank) == four, "other calls than four of create");
    prepare(world_group(), gpu);
    sum_once(1);
    const Tensor all = empty({2 * count}, DType::float32, gpu);
    const Tensor one = tensor_of(std::vector<float>(count, 3), DType::float32, gpu);
    all_gather(world_group(), all, one);
    reduce_scatter(world_group(), one, all, ReduceOp::sum);
    broadcast(world_group(), one, 0);
    for (const float each : values_of<float>(one)) require(each == 6, "a wrong sum");
    exchange(world_group(), "", "all have ended");
    require(nccl.count("create") == 8, "a collective creates a communicator");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(Nccl, APreparationLeavesOutStreamsThatAreInUse) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl& nccl) {
    const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
    const Work sum = all_reduce(world_group(), x, ReduceOp::sum, {.async = true});
    prepare(world_group(), gpu);
    sum.wait();
    for (const float each : values_of<float>(x)) require(each == 2, "a wrong sum");
    const std::vector<std::string> log = nccl.log(rank);
    require(std::count(log.begin(), log.end(), "create 2") == 4, "a stream has two communicators");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(Nccl, APreparationIsNoCollective) {
  const auto failures = run_on_gpus(2, [](int, RecordingNccl&) {
    prepare(world_group(), gpu);
    require(log().empty() && transport_bytes() == 0, "it is counted");
  });
  EXPECT_THAT(failures, Each(""));
}

// Without NCCL, and between hosts.
TEST(Nccl, APreparationDoesNothingWhereNcclMovesNothing) {
  const auto body = [](int) {
    prepare(world_group(), gpu);
    require(world_group().sequence() == 0, "the group has made a call");
  };
  EXPECT_THAT(testing_gpu::run_on_gpu(2, Kind::threads, body), Each(""));
  device::cuda::RecordingCalls calls(2);
  const device::cuda::StandIn stand_in(calls);
  RecordingNccl library(calls);
  nccl::replace_calls(&library);
  const auto failures = testing_hosts::run_hosts({0, 1}, body);
  nccl::restore_calls();
  EXPECT_THAT(failures, Each(""));
}

// Within a second. A late rank may open one more before its own call fails.
bool closes_all(RecordingNccl& nccl) {
  for (int i = 0; i < 1000; ++i, usleep(1000))
    if (nccl.num_open() == 0) return true;
  return false;
}

// One text on all members names the rank, and all communicators are gone.
TEST(Nccl, AFailedPreparationNamesTheRank) {
  for (const auto& [call, nth] :
       std::vector<std::pair<std::string, int>>{{"create", 1}, {"create", 3}, {"poll", 1}, {"poll", 4}}) {
    const auto failures = run_on_gpus(3, [&, name = call, n = nth](int rank, RecordingNccl& nccl) {
      if (rank == 1) nccl.fail(name, 1, n);
      try {
        prepare(world_group(), gpu);
      } catch (const CollectiveError&) {
        require(closes_all(nccl), "communicators are left");
        throw;
      }
    });
    EXPECT_THAT(failures, Each(AllOf(HasSubstr("rank 1: " + call + " of member 1: refused by the test"))))
        << call << " " << nth;
  }
}

TEST(Nccl, APreparationEndsWithoutALostRank) {
  const auto failures = run_on_gpus(3, [](int rank, RecordingNccl&) {
    if (rank == 2) throw Error("out of ideas");
    prepare(world_group(), gpu);
  });
  EXPECT_THAT(failures, ElementsAre(HasSubstr("rank 2 failed: out of ideas"), HasSubstr("rank 2 failed: out of ideas"),
                                    "out of ideas"));
}

TEST(Nccl, APreparationDoesNotMatchACollective) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl&) {
    if (rank == 0) return prepare(world_group(), gpu);
    sum_once(1);
    device::current_stream(gpu).synchronize();
  });
  EXPECT_THAT(failures,
              Each(AllOf(HasSubstr("rank 0 calls preparation of collectives"), HasSubstr("all_reduce(sum)"))));
}

// The first collectives of two streams open their communicators at the same time. In every order of the members,
// because a mistake would not show each time.
TEST(Nccl, OpensTheCommunicatorsOfTwoStreamsAtOnce) {
  const auto failures = run_on_gpus(3, [](int rank, RecordingNccl& nccl) {
    std::vector<int> members = {0, 1, 2};
    int num_ids = 0;
    do {
      nccl.await_ids(num_ids += 2);
      ProcessGroup& group = group_of(members);
      const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
      const Tensor one = tensor_of(std::vector<float>(count, static_cast<float>(rank)), DType::float32, gpu);
      const Tensor all = empty({3 * count}, DType::float32, gpu);
      const Work sum = all_reduce(group, x, ReduceOp::sum, {.async = true});
      const Work gathered = all_gather(group, all, one, {.async = true});
      sum.wait();
      gathered.wait();
      for (const float each : values_of<float>(x)) require(each == 3, "a wrong sum");
      const std::vector<float> values = values_of<float>(all);
      for (std::size_t m = 0; m < 3; ++m) require(values[m * count] == static_cast<float>(members[m]), "a wrong part");
    } while (std::next_permutation(members.begin(), members.end()));
  });
  EXPECT_THAT(failures, Each(""));
}

// Ids whose communicators are not open on all members. The stand-in has a file for each.
int num_waiting_ids() {
  int found = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    const std::string file = std::filesystem::read_symlink(each, closed_meanwhile).string();
    found += file.find("stand-in of a communicator") != std::string::npos ? 1 : 0;
  }
  return found;
}

TEST(Nccl, MakesOneIdPerCommunicator) {
  const auto failures = run_on_gpus(4, [](int, RecordingNccl&) {
    sum_once(1);
    exchange(world_group(), "", "all have their sums");
    require(num_waiting_ids() == 0, str(num_waiting_ids(), " ids that no communicator uses"));
    exchange(world_group(), "", "all have counted");
  });
  EXPECT_THAT(failures, Each(""));
}

// run_on_gpus() fails if a communicator is left.
TEST(Nccl, FreesItsCommunicatorsWithTheRank) {
  const auto failures = run_on_gpus(3, [](int, RecordingNccl& nccl) {
    sum_once(1);
    // Members may be ahead of each other by a collective, but not by two.
    sum_once(1);
    require(nccl.num_open() == 3, str(nccl.num_open(), " communicators"));
    exchange(world_group(), "", "all have counted");
  });
  EXPECT_THAT(failures, Each(""));
}

// The collective fails on all members with one text, and each frees its communicator.
TEST(Nccl, AbortsOnAllMembersWhenACallFailsOnOne) {
  const std::vector<std::pair<std::string, int>> calls = {{"create", 1},  {"send", 1},    {"send", 2},
                                                          {"receive", 1}, {"receive", 3}, {"poll", 1},
                                                          {"poll", 2},    {"poll", 3},    {"poll", 5}};
  for (const auto& [call, nth] : calls) {
    const auto failures = run_on_gpus(3, [&, name = call, n = nth](int rank, RecordingNccl& nccl) {
      if (rank == 1) nccl.fail(name, 1, n);
      try {
        sum_once(1);
        device::current_stream(gpu).synchronize();
      } catch (const Error&) {
        // All members come here, also those whose own calls have succeeded.
        require(closes_all(nccl), "communicators are left");
        throw;
      }
    });
    EXPECT_THAT(failures, Each(AllOf(HasSubstr(call + " of member 1: refused by the test")))) << call << " " << nth;
  }
}

// All calls of the two steps are made, and each step has asked once: the next question is that of the wait for the
// stream.
TEST(Nccl, AFailureWhileDataMovesEndsOnAllMembers) {
  const auto failures = run_on_gpus(3, [](int rank, RecordingNccl& nccl) {
    sum_once(1);  // creates the communicator
    exchange(world_group(), "", "all have their sums");
    if (rank == 1) nccl.fail("poll", 1, 3);
    sum_once(1);
    device::current_stream(gpu).synchronize();
  });
  EXPECT_THAT(failures, Each(HasSubstr("poll of member 1: refused by the test")));
}

// The calls of other groups on the same stream come after those of the failed step, and are no part of it.
TEST(Nccl, ARefusedCallLeavesItsStreamToOtherGroups) {
  for (const char* call : {"send", "receive"}) {
    const auto failures = run_on_gpus(3, [call](int rank, RecordingNccl& nccl) {
      if (rank == 1) nccl.fail(call, 1, 1);
      bool has_failed = false;
      try {
        sum_once(1);
        device::current_stream(gpu).synchronize();
      } catch (const CollectiveError&) {
        has_failed = true;
      }
      require(has_failed, "it has not failed");
      device::clear_failures();
      if (rank == 2) return;
      const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
      all_reduce(group_of({0, 1}), x, ReduceOp::sum);
      for (const float each : values_of<float>(x)) require(each == 2, "a wrong sum");
    });
    EXPECT_THAT(failures, Each("")) << call;
  }
}

// A rank is killed when all have arrived, and before its stream has come to the collective. The abort frees the streams
// of its peers, which still wait for its parts.
TEST(Nccl, ARankThatDiesWhileDataMovesLeavesTheStreamsOfItsPeers) {
  const auto failures = run_on_gpus(
      3,
      [](int rank, RecordingNccl&) {
        sum_once(1);
        const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
        const Tensor y = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
        if (rank == 2) {
          dynamic_cast<device::cuda::RecordingCalls&>(device::cuda::calls()).hold_all(true);
          const Work sum = all_reduce(world_group(), x, ReduceOp::sum, {.async = true});
          usleep(200'000);
          ::raise(SIGKILL);
        }
        std::string failure;
        try {
          all_reduce(world_group(), x, ReduceOp::sum);
          device::current_stream(gpu).synchronize();
        } catch (const CollectiveError& error) {
          failure = error.message();
        }
        require(failure.find("rank 2 died") != std::string::npos, "it fails otherwise: " + failure);
        device::clear_failures();
        all_reduce(group_of({0, 1}), y, ReduceOp::sum);
        for (const float each : values_of<float>(y)) require(each == 2, "a wrong sum");
      },
      5.0, Kind::processes);
  EXPECT_THAT(failures, ElementsAre("", "", HasSubstr("signal 9")));
}

// Rank 1 fails after a broadcast, which rank 2 receives later: rank 3 must not find the failure before that.
TEST(Nccl, ACollectiveEndsOnAllMembersBeforeALaterFailure) {
  const auto failures = run_on_gpus(
      4,
      [](int rank, RecordingNccl&) {
        sum_once(1);
        auto& cuda = dynamic_cast<device::cuda::RecordingCalls&>(device::cuda::calls());
        const Tensor x = tensor_of(std::vector<float>(count, static_cast<float>(rank + 1)), DType::float32, gpu);
        if (rank == 2) cuda.hold_all(true);
        const Work received = broadcast(world_group(), x, 0, {.async = true});
        if (rank == 2) {
          usleep(300'000);
          cuda.hold_all(false);
        }
        received.synchronize();
        for (const float each : values_of<float>(x)) require(each == 1, "a wrong value");
        if (rank == 1) throw Error("out of ideas");
        if (rank == 3) sum_once(1);
      },
      5.0, Kind::processes);
  EXPECT_THAT(failures, ElementsAre("", "out of ideas", "", HasSubstr("Rank 3 waits in all_reduce")));
}

// All have arrived, and one stream has not come to the collective: the deadline names its rank on all members, the
// communicators are gone, and other groups go on.
TEST(Nccl, TheDeadlineNamesTheRankWhoseStreamIsLate) {
  for (const int late : {0, 2}) {
    const auto failures = run_on_gpus(
        3,
        [late](int rank, RecordingNccl& nccl) {
          sum_once(1);
          const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
          const Tensor y = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
          exchange(world_group(), "", "all have begun");
          auto& cuda = dynamic_cast<device::cuda::RecordingCalls&>(device::cuda::calls());
          device::cuda::StreamHandle const stream = device::stream(gpu, device::Role::all_reduce).execution().stream;
          if (rank == late) cuda.hold(stream);
          std::string failure;
          try {
            all_reduce(world_group(), x, ReduceOp::sum, {.async = true}).synchronize();
          } catch (const CollectiveError& error) {
            failure = error.message();
          }
          const std::string expected = str("all arrived, but the data was not moved within 0.5 s. The stream of rank ",
                                           late, " has not come to it.");
          require(failure.find(expected) != std::string::npos, "it fails otherwise: " + failure);
          for (int i = 0; i < 1000 && nccl.num_open() > 3; ++i) usleep(1000);
          require(nccl.num_open() <= 3, "communicators are left");  // those of the first sum, on another stream
          if (rank == late) cuda.resume(stream);
          device::clear_failures();
          if (rank == late) return;
          all_reduce(group_of(late == 0 ? std::vector<int>{1, 2} : std::vector<int>{0, 1}), y, ReduceOp::sum);
          for (const float each : values_of<float>(y)) require(each == 2, "a wrong sum");
        },
        0.5);
    EXPECT_THAT(failures, Each("")) << "rank " << late;
  }
}

TEST(Nccl, EndsItsWaitsWhenAMemberFailsElsewhere) {
  const auto failures = run_on_gpus(3, [](int rank, RecordingNccl&) {
    sum_once(1);
    if (rank == 1) throw Error("out of ideas");
    sum_once(1);
  });
  EXPECT_THAT(failures, ElementsAre(HasSubstr("rank 1 failed: out of ideas"), HasSubstr("out of ideas"),
                                    HasSubstr("rank 1 failed: out of ideas")));
}

// Of the ranks 0, 1 and 4 on one host, rank 4 is the third.
TEST(PlaceOnHost, CountsTheRanksOfTheSameHost) {
  const std::vector<int> indices = {0, 1, 0, 1, 2}, numbers = {3, 3, 2, 2, 3};
  const auto failures = testing_hosts::run_hosts({0, 0, 1, 1, 0}, [&](int rank) {
    const auto& place = RankContext::current().service<device::PlaceOnHost>();
    const auto r = static_cast<std::size_t>(rank);
    require(place.index == indices[r] && place.num_ranks == numbers[r],
            str("rank ", place.index, " of ", place.num_ranks, " on its host"));
    exchange(world_group(), "", "all have looked");
  });
  EXPECT_THAT(failures, Each(""));
}

// The memory in which the parts of a sum arrive is that of earlier steps, too.
TEST(Nccl, CreatesNothingInASteadyStep) {
  const auto failures = run_on_gpus(2, [](int, RecordingNccl& nccl) {
    const auto& cuda = dynamic_cast<const device::cuda::RecordingCalls&>(device::cuda::calls());
    const auto made = [&] {
      return std::vector<int>{nccl.count("create"), cuda.count("allocate"), cuda.count("create_event"),
                              cuda.count("create_stream")};
    };
    for (int i = 0; i < 2; ++i) sum_once(1);
    exchange(world_group(), "", "all have begun");
    const std::vector<int> before = made();
    const std::int64_t misses = device::memory_stats().num_pool_misses;
    exchange(world_group(), "", "all have counted");
    for (int i = 0; i < 10; ++i) sum_once(2);
    exchange(world_group(), "", "all have ended");
    require(before[1] == 2, "a rank allocates more than its pools");
    require(made() == before, "a later step creates something");
    require(device::memory_stats().num_pool_misses == misses, "a pool grows");
  });
  EXPECT_THAT(failures, Each(""));
}

// The statistics and limits of a rank are those of every transport.
TEST(Nccl, DoesNotCountTheMemoryOfItsSums) {
  const auto failures = run_on_gpus(2, [](int, RecordingNccl&) {
    const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, gpu);
    const device::MemoryStats before = device::memory_stats();
    for (int i = 0; i < 3; ++i) all_reduce(world_group(), x, ReduceOp::sum);
    const device::MemoryStats after = device::memory_stats();
    require(after.peak_total == before.peak_total && after.num_allocations == before.num_allocations, "it counts");
    require(after.num_pool_misses == before.num_pool_misses + 1, "the sums share no memory");
    for (const float each : values_of<float>(x)) require(each == 8, "a wrong sum");
  });
  EXPECT_THAT(failures, Each(""));
}

// Of the same role, on another index of the device. The communicators of other streams stay.
TEST(Nccl, AMemberMayUseAnotherStreamThanBefore) {
  const auto failures = run_on_gpus(2, [](int rank, RecordingNccl& nccl) {
    sum_once(1);
    const device::Device own = rank == 0 ? device::Device{device::Kind::cuda, 5} : gpu;
    const Tensor x = tensor_of(std::vector<float>(count, 1), DType::float32, own);
    all_reduce(world_group(), x, ReduceOp::sum);
    for (const float each : values_of<float>(x)) require(each == 2, "a wrong sum");
    sum_once(1);
    const std::vector<std::string> log = nccl.log(rank);
    require(std::count(log.begin(), log.end(), "create 2") == 2, "other communicators than two");
  });
  EXPECT_THAT(failures, Each(""));
}

// Groups that share ranks have communicators of their own.
TEST(Nccl, KeepsTheGroupsOfAMeshApart) {
  const auto failures = run_on_gpus(4, [](int rank, RecordingNccl& nccl) {
    ProcessGroup& row = group_of({rank / 2 * 2, rank / 2 * 2 + 1});
    ProcessGroup& column = group_of({rank % 2, rank % 2 + 2});
    for (int i = 0; i < 3; ++i) {
      const Tensor x = tensor_of(std::vector<float>(count, static_cast<float>(rank)), DType::float32, gpu);
      all_reduce(row, x, ReduceOp::sum);
      all_reduce(column, x, ReduceOp::sum);
      for (const float each : values_of<float>(x)) require(each == 6, "a wrong sum");
    }
    const std::vector<std::string> log = nccl.log(rank % 2);
    require(std::count(log.begin(), log.end(), "create 2") >= 2, "the groups share a communicator");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep::comm
