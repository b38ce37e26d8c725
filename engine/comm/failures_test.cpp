// Failed collectives: every rank reports them soon, with ranks and names.
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/comm/test_hosts.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/defects.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Tensor floats(std::int64_t count, float value = 1.0f) {
  return tensor_of(std::vector<float>(static_cast<std::size_t>(count), value), DType::float32);
}

class CollectiveFailures : public ::testing::TestWithParam<Kind> {
 protected:
  std::vector<std::string> run(int size, const Body& body, double deadline = 10.0) {
    return run_ranks(size, GetParam(), body, deadline);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveFailures, ::testing::Values(Kind::threads, Kind::processes),
                         [](const auto& of) { return of.param == Kind::threads ? "threads" : "processes"; });

// ---- mismatches: detected before data moves, on every rank, with the call of each rank

TEST_P(CollectiveFailures, NamesBothOperations) {
  const auto failures = run(3, [](int rank) {
    RankContext::current().scenario_line = 10 + rank;
    if (rank == 1)
      broadcast(world_group(), floats(6), 0, {.owner = "fc2.weight"});
    else
      all_reduce(world_group(), floats(6), ReduceOp::sum, {.owner = "fc1.weight"});
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("all_reduce"), HasSubstr("do not agree on the operation"),
                               HasSubstr("rank 1 calls broadcast of 6 float32 from rank 0 for fc2.weight at line 11"),
                               HasSubstr("rank 0 calls all_reduce(sum) of 6 float32 for fc1.weight at line 10"),
                               HasSubstr("rank 2 calls all_reduce(sum) of 6 float32 for fc1.weight at line 12")))
        << failure;
}

TEST_P(CollectiveFailures, NamesSizesTypesReductionsAndRoots) {
  const auto expect_all = [](const std::vector<std::string>& failures, const std::string& what, const std::string& a,
                             const std::string& b) {
    for (const std::string& failure : failures)
      EXPECT_THAT(failure, AllOf(HasSubstr(what), HasSubstr(a), HasSubstr(b)));
  };
  // A small and a large tensor would take different code paths if the sizes were not compared first.
  expect_all(run(2, [](int rank) { all_reduce(world_group(), floats(rank == 0 ? 4 : 2'000'000), ReduceOp::sum); }),
             "do not agree on the number of elements", "rank 0 calls all_reduce(sum) of 4 float32",
             "rank 1 calls all_reduce(sum) of 2000000 float32");
  expect_all(run(2,
                 [](int rank) {
                   const Tensor tensor = empty({4}, rank == 0 ? DType::float32 : DType::int32, {});
                   all_reduce(world_group(), tensor, ReduceOp::sum);
                 }),
             "do not agree on the type", "4 float32", "4 int32");
  expect_all(run(2, [](int rank) { all_reduce(world_group(), floats(4), rank == 0 ? ReduceOp::max : ReduceOp::sum); }),
             "do not agree on the reduction", "rank 0 calls all_reduce(max)", "rank 1 calls all_reduce(sum)");
  expect_all(run(2, [](int rank) { broadcast(world_group(), floats(4), rank); }), "do not agree on the root",
             "from rank 0", "from rank 1");
}

TEST_P(CollectiveFailures, ShowsTheContentTexts) {
  const auto failures = run(2, [](int rank) {
    Call call;
    call.content_digest = static_cast<std::uint64_t>(40 + rank);
    call.content_text = [rank] { return rank == 0 ? "gradients of a, b" : "gradients of a"; };
    all_reduce(world_group(), floats(4), ReduceOp::mean, call);
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("the module it is for, or its contents"),
                               HasSubstr("rank 0: gradients of a, b"), HasSubstr("rank 1: gradients of a")));
}

// A blocking all_gather mismatches a deferred reduce_scatter. No thread waits in the latter, so its rank publishes the
// content text while it waits for something else.
TEST_P(CollectiveFailures, PublishesTheTextOfADeferredCallWhileWaitingElsewhere) {
  for (const bool ends_round : {true, false}) {
    const auto failures = run(3, [ends_round](int rank) {
      ProcessGroup& world = world_group();
      ProcessGroup& others = rank == 0 ? world : group_of({1, 2});
      if (rank == 0) {
        // By then the others wait. The text of a rank that does not wait is awaited only briefly.
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        all_gather(world, floats(12), floats(4), {.owner = "block.1"});
        return;
      }
      Call call{.async = true, .owner = "block.0"};
      call.content_digest = 7;
      call.content_text = [rank] { return str("gradients of rank ", rank); };
      const Tensor input = floats(12), output = floats(4);
      const Work work = reduce_scatter(world, output, input, ReduceOp::sum, call);
      if (ends_round) {
        end_round(world, true, "block.0");
      } else {
        // Rank 2 waits here for rank 1, which arrives only after the error has been thrown.
        if (rank == 1) work.wait();
        barrier(others);
      }
      work.wait();
    });
    for (std::size_t rank = 0; rank < 2; ++rank)
      EXPECT_THAT(failures[rank],
                  AllOf(HasSubstr("do not agree on the operation"),
                        HasSubstr("rank 0 calls all_gather of 12 float32 for block.1"),
                        HasSubstr("ranks 1, 2 call reduce_scatter(sum) of 12 float32 for block.0"),
                        HasSubstr("rank 1: gradients of rank 1"), HasSubstr("rank 2: gradients of rank 2")))
          << "rank " << rank << (ends_round ? " ends its round" : " waits in another group");
  }
}

// The flight recorder holds later calls in the place of this one. The texts of the contents are still there.
TEST_P(CollectiveFailures, SaysThatACallIsOlderThanTheRecordedOnes) {
  const auto failures = run(2, [](int rank) {
    Call call{.async = true, .owner = "block.0"};
    call.content_digest = static_cast<std::uint64_t>(40 + rank);
    call.content_text = [rank] { return str("gradients of rank ", rank); };
    const Tensor x = floats(4);
    const Work work = all_reduce(world_group(), x, ReduceOp::sum, call);
    for (int i = 0; i < 2001; ++i) barrier(group_of({rank}));
    work.wait();
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("all_reduce #0 of group [0, 1]: its members do not agree on details that the "
                                         "flight recorder does not keep any more"),
                               HasSubstr("ranks 0, 1 call all_reduce (no details: the flight recorder keeps the last "
                                         "2000 calls of a rank, and this one is older)"),
                               HasSubstr("rank 0: gradients of rank 0"), HasSubstr("rank 1: gradients of rank 1"),
                               Not(HasSubstr("barrier"))));
}

// A failed call does not give its text in the place of that of a later one.
TEST_P(CollectiveFailures, ShowsTheTextsOfALaterCallAfterADeferredOneHasFailed) {
  const auto failures = run(2, [](int rank) {
    Call early{.async = true, .owner = "early"};
    early.content_digest = 7;
    early.content_text = [] { return std::string("the same on all ranks"); };
    const Tensor x = floats(4 + rank);
    const Work work = all_reduce(world_group(), x, ReduceOp::sum, early);
    bool failed = false;
    try {
      work.wait();
    } catch (const CollectiveError&) {
      failed = true;
    }
    require(failed, "the sizes differ");
    const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    if (rank == 0) sleep();  // it comes last, and has not waited when it gives its text
    Call late;
    late.content_digest = static_cast<std::uint64_t>(40 + rank);
    late.content_text = [rank, sleep] {
      if (rank == 1) sleep();  // rank 0 waits for the text
      return str("contents of rank ", rank);
    };
    all_gather(group_of({1, 0}), floats(8), floats(4), late);
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("or its contents"), HasSubstr("rank 0: contents of rank 0"),
                               HasSubstr("rank 1: contents of rank 1")));
}

// The rank of the deferred call computes until the others have failed, so they cannot have waited for its text.
TEST(Failures, DoesNotWaitForTheTextOfARankThatComputes) {
  std::atomic<bool> failed{false};
  bool waited_in_vain = false;
  const auto failures = run_ranks(
      2, Kind::threads,
      [&](int rank) {
        ProcessGroup& world = world_group();
        if (rank == 0) {
          Call call{.async = true, .owner = "block.0"};
          call.content_digest = 7;
          call.content_text = [] { return std::string("never asked for"); };
          const Tensor input = floats(8), output = floats(4);
          const Work work = reduce_scatter(world, output, input, ReduceOp::sum, call);
          for (int i = 0; i < 6000 && !failed.load(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          waited_in_vain = !failed.load();
          work.wait();
        }
        try {
          all_gather(world, floats(8), floats(4), {.owner = "block.1"});
        } catch (const CollectiveError&) {
          failed = true;
          throw;
        }
      },
      120.0);
  EXPECT_FALSE(waited_in_vain);
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, AllOf(HasSubstr("rank 0 calls reduce_scatter(sum) of 8 float32 for block.0"),
                               HasSubstr("rank 1 calls all_gather of 8 float32 for block.1"),
                               Not(HasSubstr("never asked for"))));
}

TEST_P(CollectiveFailures, MovesNoDataOnAMismatch) {
  const auto failures = run(2, [](int rank) {
    const Tensor tensor = floats(8, 3.0f);
    try {
      all_reduce(world_group(), tensor, rank == 0 ? ReduceOp::sum : ReduceOp::product);
    } catch (const CollectiveError&) {
      require(same_bits(values_of<float>(tensor), std::vector<float>(8, 3.0f)), "the buffer was changed");
      return;
    }
    throw Error("no error came");
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST_P(CollectiveFailures, PoisonsOnlyItsGroup) {
  const auto failures = run(4, [](int rank) {
    ProcessGroup& pair = group_of(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    std::string first;
    try {
      all_reduce(pair, floats(rank == 1 ? 5 : 4), ReduceOp::sum);
    } catch (const CollectiveError& error) {
      first = error.message();
    }
    require(first.empty() == (rank >= 2), "the wrong ranks saw the mismatch: " + first);
    std::string second;
    const double took = seconds_of([&] {
      try {
        barrier(pair);
      } catch (const CollectiveError& error) {
        second = error.message();
      }
    });
    require(second.empty() == (rank >= 2), "a poisoned group remained usable: " + second);
    if (rank < 2) {
      require(second.find("is unusable since an earlier collective of it failed") != std::string::npos, second);
      require(second.find("number of elements") != std::string::npos, second);
      require(took < 0.5, "a poisoned group made its caller wait");
    }
    require(comm::exchange(world_group(), "x").size() == 4, "the world group still works");
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

// ---- ranks that end

TEST_P(CollectiveFailures, ReportsAnEndedRankAtOnce) {
  std::vector<std::string> failures;
  const double took = seconds_of([&] {
    failures = run(3, [](int rank) {
      if (rank == 1) return;
      all_reduce(world_group(), floats(4), ReduceOp::sum);
    });
  });
  EXPECT_EQ(failures[1], "");
  for (int rank : {0, 2})
    EXPECT_THAT(failures[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("rank 1 has finished its steps without this call"), HasSubstr("called no collective")));
  EXPECT_LT(took, 2.0);
}

TEST_P(CollectiveFailures, ReportsAFailedRankAtOnceWithItsReason) {
  std::vector<std::string> failures;
  const double took = seconds_of([&] {
    failures = run(3, [](int rank) {
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        throw Error("the dog ate the batch");
      }
      try {
        all_reduce(world_group(), floats(4), ReduceOp::sum);
      } catch (const PeerEndedError&) {
        throw;
      } catch (const std::exception& error) {
        throw Error(std::string("not a PeerEndedError: ") + error.what());
      }
    });
  });
  for (int rank : {0, 2})
    EXPECT_THAT(failures[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("rank 1 failed: the dog ate the batch"), Not(HasSubstr("not a PeerEndedError"))));
  EXPECT_LT(took, 2.0);
}

TEST(Failures, AKilledRankEndsTheOthersAtOnceAndIsRecorded) {
  World world(3, Kind::processes);
  std::vector<std::string> failures;
  const double took = seconds_of([&] {
    failures = run_ranks(world, [](int rank) {
      RankContext::current().scenario_line = 30 + rank;
      barrier(world_group());
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        raise(SIGKILL);
      }
      all_gather(world_group(), empty({12}, DType::float32, {}), floats(4), {.owner = "block.3"});
    });
  });
  EXPECT_EQ(failures[1], "signal 9");
  for (int rank : {0, 2})
    EXPECT_THAT(failures[static_cast<std::size_t>(rank)], HasSubstr("rank 1 died: ended by signal 9"));
  EXPECT_LT(took, 2.0);

  const std::vector<RankHistory> stories = read_recorder(*world.host);
  ASSERT_EQ(stories.size(), 3u);
  EXPECT_TRUE(stories[1].died);
  ASSERT_EQ(stories[1].collectives.size(), 1u);
  EXPECT_EQ(stories[1].collectives[0].operation, "barrier");
  EXPECT_EQ(stories[1].collectives[0].state, CollectiveState::done);
  ASSERT_EQ(stories[0].collectives.size(), 2u);
  EXPECT_EQ(stories[0].collectives[1].operation, "all_gather");
  EXPECT_EQ(stories[0].collectives[1].owner, "block.3");
  EXPECT_EQ(stories[0].collectives[1].bytes, 48);
  EXPECT_EQ(stories[0].collectives[1].scenario_line, 30);
  EXPECT_EQ(stories[0].collectives[1].state, CollectiveState::failed);
  EXPECT_EQ(last_call_text(stories[1]), "after barrier at line 31 (#0 of group [0, 1, 2])");
  const std::string explanation = explain(stories);
  EXPECT_THAT(explanation, HasSubstr("Rank 1 died: ended by signal 9. It last called barrier at line 31"));
  EXPECT_THAT(explanation, HasSubstr("Ranks 0, 2 wait in all_gather of 48 bytes of float32 for block.3 at line 30"));
  EXPECT_EQ(explain(histories_from_text(to_text(stories))), explanation);
  EXPECT_EQ(explain(histories_from_text("\n" + to_text(stories) + "\n")), explanation) << "empty lines";
  std::string cut = to_text(stories);
  cut.pop_back();
  EXPECT_EQ(explain(histories_from_text(cut)), explanation) << "no newline at the end";
  EXPECT_THROW(histories_from_text("{\"rank\": }"), Error);
}

// A host hears of a collective when the stream of the caller has come to it, and of the call when the caller has ended.
TEST(Failures, AKilledRankOfAnotherHostIsNamedWithACallThatItsStreamHasNotReached) {
  const std::vector<std::string> failures = testing_hosts::run_hosts({0, 0, 1}, [](int rank) {
    const device::Device sim{device::Kind::sim, rank};
    const Tensor output = empty({12}, DType::float32, sim), input = full({4}, 1.0, DType::float32, sim);
    barrier(world_group());
    if (rank == 2) device::delay(device::stream(sim, device::Role::all_gather), 20'000);
    all_gather(world_group(), output, input, {.async = true, .owner = "block.3"});
    if (rank == 2) raise(SIGKILL);
    device::synchronize_all();
  });
  for (int rank : {0, 1})
    EXPECT_THAT(failures[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("rank 2 died: ended by signal 9"),
                      HasSubstr("rank 2 called last: all_gather of 12 float32 for block.3")));
}

TEST_P(CollectiveFailures, AbortEndsEveryWait) {
  std::vector<std::string> failures;
  const double took = seconds_of([&] {
    failures = run(3, [](int rank) {
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        announce_abort(*static_cast<device::HostWorld*>(RankContext::current().shared()), "enough is enough");
      }
      all_reduce(world_group(), floats(4), ReduceOp::sum);
    });
  });
  for (const std::string& failure : failures) EXPECT_THAT(failure, HasSubstr("the case was aborted: enough is enough"));
  EXPECT_LT(took, 2.0);
}

// ---- arguments

TEST(Failures, RefusesInvalidArguments) {
  const auto failures = run_ranks(2, Kind::threads, [](int rank) {
    const auto refused = [](const std::function<void()>& call, const std::string& fragment) {
      try {
        call();
      } catch (const Error& error) {
        require(std::string(error.what()).find(fragment) != std::string::npos, str("another message: ", error.what()));
        return;
      }
      throw Error(str("not refused: ", fragment));
    };
    ProcessGroup& group = world_group();
    const Tensor full = floats(4), shard = floats(2);
    refused([&] { all_reduce(group, empty({2}, DType::int64, {}), ReduceOp::mean); }, "mean of int64");
    refused([&] { all_reduce(group, empty({2}, DType::boolean, {}), ReduceOp::sum); }, "bool has no sum");
    refused([&] { all_gather(group, floats(5), shard); }, "output has 5 elements");
    refused([&] { all_gather(group, empty({4}, DType::float64, {}), shard); }, "the same dtype and device");
    refused([&] { reduce_scatter(group, shard, floats(5), ReduceOp::sum); }, "input has 5 elements");
    refused([&] { all_to_all(group, floats(3), floats(3)); }, "do not split into 2");
    refused([&] { all_gather(group, full, slice(full, 0, 1, 3)); }, "overlap");
    const int last = group.size() - 1;
    if (rank == last) {
      refused([&] { gather(group, full, slice(full, 0, 1, 3), last); }, "gather: input and output overlap");
      refused([&] { gather(group, full, slice(full, 0, 0, 2), last); }, "exactly this rank's shard of the larger one");
      refused([&] { scatter(group, slice(full, 0, 0, 2), full, last); }, "scatter: input and output overlap");
    }
    refused([&] { all_to_all(group, full, full); }, "all_to_all: input and output overlap");
    refused([&] { all_reduce(group, transpose(view(full, {2, 2}), 0, 1), ReduceOp::sum); }, "not contiguous");
    refused([&] { broadcast(group, full, 2); }, "broadcast: rank 2 is not in a group of 2");
    refused([&] { gather(group, full, shard, 2); }, "gather: rank 2 is not in a group of 2");
    refused([&] { scatter(group, shard, full, -1); }, "scatter: rank -1 is not in a group of 2");
    refused([&] { receive(group, full, 2); }, "receive: rank 2 is not in a group of 2");
    refused([&] { send(group, full, rank); }, "this rank itself");
    const Tensor none;
    refused([&] { all_reduce(group, none, ReduceOp::sum); }, "all_reduce: the tensor is undefined");
    refused([&] { all_gather(group, none, shard); }, "all_gather: the output is undefined");
    refused([&] { all_gather(group, full, none); }, "all_gather: the input is undefined");
    refused([&] { reduce_scatter(group, none, full, ReduceOp::sum); }, "reduce_scatter: the output is undefined");
    refused([&] { all_to_all(group, full, none); }, "all_to_all: the input is undefined");
    refused([&] { broadcast(group, none, 0); }, "broadcast: the tensor is undefined");
    refused([&] { gather(group, none, shard, rank); }, "gather: the output is undefined");
    refused([&] { gather(group, none, none, 1 - rank); }, "gather: the input is undefined");
    refused([&] { scatter(group, shard, none, rank); }, "scatter: the input is undefined");
    refused([&] { scatter(group, none, none, 1 - rank); }, "scatter: the output is undefined");
    refused([&] { send(group, none, 1 - rank); }, "send: the tensor is undefined");
    refused([&] { receive(group, none, 1 - rank); }, "receive: the tensor is undefined");
    refused([&] { group_of({0, 0, 1}); }, "named twice");
    refused([&] { group_of({0, 7}); }, "not in a world of 2");
    refused([&] { group_of({1 - rank}); }, "only members");
    refused([&] { set_deadline(0); }, "positive");
    refused([&] { reduce_op_from_name("median"); }, "unknown reduction");
    // No refused call has made the group unusable or was counted.
    require(log().empty() && group.sequence() == 0, "a refused call was counted");
    barrier(group);
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

// ---- a seeded defect

TEST(Failures, ASumThatOmitsARankShowsInTheValues) {
  arm_defect(Defect::sum_leaves_out_rank);
  const auto failures = run_ranks(3, Kind::threads, [](int rank) {
    const Tensor tensor = floats(4, static_cast<float>(rank + 1));
    all_reduce(world_group(), tensor, ReduceOp::sum);
    require(values_of<float>(tensor)[0] == 6.0f, str("sum ", values_of<float>(tensor)[0]));
  });
  arm_defect(Defect::none);
  for (const std::string& failure : failures) EXPECT_EQ(failure, "sum 3");
}

}  // namespace
}  // namespace lockstep::comm
