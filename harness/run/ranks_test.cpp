// Cases of several ranks from the launcher. The ranks are threads unless a test says otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing_support::all_failures;
using testing_support::Ran;
using testing_support::ranks;
using testing_support::run_steps;
using verdict::Status;

class Launches : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Launch, Launches, ::testing::Values("thread", "process"),
                         [](const auto& tested) { return tested.param; });

TEST_P(Launches, EveryCollectiveReturnsItsResult) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "full([4], 1.0) * (rank + 1)", t: arange(4) + 4 * rank}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: [x, 3]
  - all_gather: t
    as: all
  - expect_equal: [all, arange(8)]
  - all_gather: {tensor: "reshape(t, 2, 2)", dim: 1}
    as: wide
  - expect_equal: [wide, "tensor([[0, 1, 4, 5], [2, 3, 6, 7]])"]
  - reduce_scatter: {tensor: t, op: sum}
    as: shard
  - expect_equal: [shard, "tensor([4, 6]) + 4 * rank"]
  - all_to_all: t
    as: turned
  - expect_equal: [turned, "tensor([0, 1, 4, 5]) + 2 * rank"]
  - let: {b: clone(t)}
  - broadcast: {tensor: b, from: 1}
  - expect_equal: [b, arange(4) + 4]
  - gather: {tensor: t, to: 0}
    as: gathered
  - expect: len(gathered) == (2 if rank == 0 else 0)
  - scatter: {tensors: "[t, t + 1]", from: 1}
    as: mine
  - expect_equal: [mine, arange(4) + 4 + rank]
  - if: rank == 0
    steps:
      - send:
          tensor: t
          to: 1
    else:
      - receive: {tensor: b, from: 0}
      - expect_equal: [b, arange(4)]
  - barrier: all_ranks
  - all_gather: {tensor: t, async: true}
    as: later
  - wait: later
  - expect_equal: [later, all]
)yaml",
                            ranks(2, GetParam()));
  EXPECT_PASS(ran);
}

TEST_P(Launches, MeshesHaveSlices) {
  const Ran ran = run_steps(R"yaml(
  - mesh: {shape: [2, 2], names: [dp, tp]}
    as: world
  - expect: [world.size == 4, world.rank == rank, world.dp.rank == rank // 2, world.tp.rank == rank % 2]
  - expect: "world.tp.names == ['tp'] and all_ranks.size == 4"
  - let: {x: "full([1], 1.0) * rank"}
  - all_reduce: {tensor: x, op: sum, mesh: world.dp}
  - expect_equal: [x, "(rank % 2) * 2 + 2"]
  - expect_across: {value: x, mesh: world.dp}
  - expect_across: {value: x, mesh: world.tp, same: false}
  - mesh: [3]
    as: bad
    raises: a mesh of 3 ranks in a world of 4
)yaml",
                            ranks(4, GetParam()));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.result.evidence.errors_expected, 4);
}

TEST_P(Launches, ExpectAcrossReportsDifferences) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "arange(5) * (1 if rank == 0 else 2)", one: len(x.shape)}
  - expect_across: {value: x}
  - expect_across: {value: "[one, 'a']"}
  - expect_across: {value: ones(2), same: false}
)yaml",
                            ranks(2, GetParam()));
  EXPECT_EQ(ran.result.status, Status::FAIL);
  for (int rank : {0, 1}) {
    ASSERT_THAT(ran.failures(rank), SizeIs(2)) << all_failures(ran);
    EXPECT_THAT(ran.failures(rank)[0],
                AllOf(HasSubstr("expect_across 4: x of rank 0 and of rank 1 differ"), HasSubstr("4 of 5")));
    EXPECT_THAT(ran.failures(rank)[1], HasSubstr("expect_across 6: ones(2) of ranks 0 and 1 is the same"));
  }
}

TEST(Ranks, ExpectAcrossFailsIfARankDoesNotReachIt) {
  const Ran ran = run_steps(R"yaml(
  - expect_across: {value: ones(2)}
    when: rank == 0
  - expect: world_size == 2 and rank < 2
)yaml",
                            ranks(2));
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_THAT(all_failures(ran), HasSubstr("rank 1 of the mesh did not reach this check"));
}

TEST(Ranks, FailingRankEndsItsPeersAndIsTheCause) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "[1, 2][rank + 1]"}
  - all_reduce: {tensor: ones(1), op: sum}
  - expect: rank >= 0
)yaml",
                            ranks(2));
  EXPECT_EQ(ran.result.status, Status::FAIL);
  EXPECT_EQ(ran.result.failure->rank, 1);
  EXPECT_THAT(ran.result.failure->message, HasSubstr("index 2 is out of range"));
  EXPECT_LT(ran.outcomes[0].end_time_ns - ran.outcomes[1].end_time_ns, 2'000'000'000);
}

TEST(Ranks, MismatchesRaiseOnEveryRank) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(4 + rank)}
  - all_reduce: {tensor: x, op: sum}
    raises: {message: "rank 0*rank 1", within_ms: 4000}
  - expect_equal: [x, 1]
)yaml",
                            ranks(2));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.result.evidence.errors_expected, 2);
}

TEST(Ranks, ReplicateAveragesAndCounts) {
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Net()
    as: plain
  - copy: plain
    as: m
  - replicate: m
  - hook: {modules: m, at: before_all_reduce}
    steps:
      - delay: 1
  - seed: 5
  - let: {x: "randn(2, 2)"}
  - observe: {}
    as: run
    steps:
      - forward: {loss: "sum(m(x[rank:rank + 1]))"}
      - backward: loss
  - expect_collectives: {during: run, phase: backward, exactly: {data_parallel: {all_reduce: 1}}}
  - expect_collectives: {during: run, phase: backward, bytes: {data_parallel: {all_reduce: 72}}, mesh: all_ranks, dtype: float32}
  - forward: {loss: sum(plain(x)) / 2}
  - backward: loss
  - expect_equal: [m, plain]
  - expect_across: {value: m.fc1.weight.grad}
  - expect: has(applied(m), 'replicate') and applied(m).replicate.parameters == names(m)
  - set_flags: {modules: m, requires_gradient_sync: false}
  - observe: {}
    as: quiet
    steps:
      - forward: {loss: sum(m(x))}
      - backward: loss
  - expect_collectives: {during: quiet, total: 0}
  - replicate: m
    raises: only be applied to a module once
)yaml",
                            ranks(2));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence(0).collectives_checked, 3);
  EXPECT_FALSE(ran.result.collectives.empty());
}

TEST(Ranks, WrongCountsReportTheObserved) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(3)}
  - observe: {}
    as: run
    steps:
      - all_reduce: {tensor: x, op: sum}
      - barrier: all_ranks
  - expect_collectives: {during: run, exactly: {user: {all_reduce: 2}, data_parallel: {all_reduce: 0}}}
  - expect_collectives: {during: run, total: 3}
  - expect: "counts(run) == {'user/all_reduce': 1, 'user/barrier': 1}"
)yaml",
                            ranks(2));
  for (int rank : {0, 1}) {
    ASSERT_THAT(ran.failures(rank), SizeIs(2)) << all_failures(ran);
    EXPECT_THAT(ran.failures(rank)[0],
                AllOf(HasSubstr("user/all_reduce: expected 2, seen 1"), HasSubstr("user/barrier: expected 0, seen 1"),
                      HasSubstr("for x (line 7)")));
    EXPECT_THAT(ran.failures(rank)[1], HasSubstr("expected 3 collectives, seen 2"));
  }
}

TEST(Ranks, ExitsAreExpected) {
  for (const std::string how : {"early", "kill"}) {
    const Ran ran = run_steps(R"yaml(
  - let: {x: ones(2)}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: [x, 2]
  - exit: )yaml" + how + R"yaml(
    when: rank == 1
  - all_reduce: {tensor: x, op: sum}
    raises: {message: rank 1, within_ms: 3000}
)yaml",
                              ranks(2, "process"));
    EXPECT_PASS(ran);
    EXPECT_EQ(ran.result.evidence.errors_expected, 1) << how;
  }
}

TEST(Ranks, AreKilledInALaterStep) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(2)}
  - expect_equal: [x, 1]
  - exit: {how: kill, after_ms: 100}
    when: rank == 1
  - note: not judged on rank 1, which is killed
    expect_equal: [x, rank + 1]
  - delay: {ms: 20000, where: host}
    when: rank == 1
  - all_reduce: {tensor: x, op: sum}
    raises: {message: "rank 1 died: ended by signal 9", within_ms: 3000, when: rank == 0}
)yaml",
                            ranks(2, "process"));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence(0).comparisons, 2);
  EXPECT_EQ(ran.evidence(1).comparisons, 1);
}

TEST(Ranks, AreKilledAfterTheirLastStep) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(2)}
  - expect_equal: [x, 1]
  - exit: {how: kill, after_ms: 100}
    when: rank == 1
)yaml",
                            ranks(2, "process"));
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.outcomes.at(1).status, verdict::RankStatus::killed);
}

TEST(Ranks, ThatAreKilledLaterWithoutAWordAreACrash) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(2)}
  - expect_equal: [x, 1]
  - exit: {how: kill, after_ms: 100, expected: false}
    when: rank == 1
)yaml",
                            ranks(2, "process"));
  EXPECT_EQ(ran.result.status, Status::CRASH) << all_failures(ran);
}

TEST(Ranks, ThatFailBeforeTheirKillReportTheirFailure) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(2)}
  - exit: {how: kill, after_ms: 20000}
    when: rank == 1
  - let: {y: x + ones(3)}
)yaml",
                            ranks(2, "process"));
  EXPECT_EQ(ran.result.status, Status::FAIL) << all_failures(ran);
  EXPECT_THAT(ran.failures(1), testing::Not(testing::IsEmpty())) << all_failures(ran);
}

TEST(Ranks, AreKilledLaterOnceAndOnlyByASignal) {
  const Ran early = run_steps("  - exit: {how: early, after_ms: 1}\n", ranks(1));
  EXPECT_THAT(all_failures(early), HasSubstr("`after_ms` is for `how: kill`"));
  const Ran twice = run_steps("  - exit: {how: kill, after_ms: 20000}\n  - exit: {how: kill, after_ms: 20000}\n",
                              ranks(1, "process"));
  EXPECT_THAT(all_failures(twice), HasSubstr("this rank is to be killed already"));
}

TEST(Ranks, MissingWaitIsAnOrderFailure) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: ones(64)}
  - all_reduce: {tensor: x, op: sum, async: true}
    as: work
  - let: {y: x * 2}
  - wait: work
  - expect_equal: [x, 2]
)yaml",
                            ranks(2, "process"));  // with threads, the thread sanitizer would report the race too
  EXPECT_EQ(ran.result.status, Status::FAIL) << all_failures(ran);
  EXPECT_EQ(ran.result.failure->check, "order") << all_failures(ran);
}

}  // namespace
}  // namespace lockstep::run
