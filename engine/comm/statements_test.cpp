#include "engine/comm/statements.hpp"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

void state(std::int64_t number, const char* what) {
  add_statement(world_group(), std::array{number}, [number, what] { return str(what, " is ", number); });
}
void reduce(Family family) {
  all_reduce(world_group(), full({2}, 1.0, DType::float32, {}), ReduceOp::sum, {.family = family});
}

class Statements : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Statements, ::testing::Values(Kind::threads, Kind::processes),
                         [](const auto& of) { return of.param == Kind::threads ? "threads" : "processes"; });

TEST_P(Statements, ThatAgreeChangeNothing) {
  EXPECT_THAT(run_ranks(3, GetParam(),
                        [](int rank) {
                          state(7, "x");
                          state(8, "y");
                          const std::size_t before = log().size();
                          reduce(Family::tensor_parallel);
                          require(log().size() == before + 1, "no collective of its own");
                          reduce(Family::tensor_parallel);
                          state(rank, "after the last collective");
                        }),
              Each(""));
}

TEST_P(Statements, ThatDifferFailTheNextCollectiveOnEveryRank) {
  EXPECT_THAT(run_ranks(3, GetParam(),
                        [](int rank) {
                          state(7, "x");
                          state(rank == 1 ? 5 : 8, "y");
                          reduce(Family::tensor_parallel);
                        }),
              Each(AllOf(HasSubstr("do not agree"), HasSubstr("ranks 0, 2: x is 7, y is 8"),
                         HasSubstr("rank 1: x is 7, y is 5"), HasSubstr("No data was moved"))));
}

TEST_P(Statements, OfOneRankOnlyFailToo) {
  EXPECT_THAT(run_ranks(2, GetParam(),
                        [](int rank) {
                          if (rank == 0) state(7, "x");
                          reduce(Family::tensor_parallel);
                        }),
              Each(HasSubstr("rank 0: x is 7")));
}

// Other families may be issued at other points of the program on the ranks.
TEST_P(Statements, AreComparedByTensorParallelCollectivesOnly) {
  EXPECT_THAT(run_ranks(2, GetParam(),
                        [](int rank) {
                          if (rank == 0) state(7, "x");
                          reduce(Family::data_parallel);
                          if (rank == 1) state(7, "x");
                          reduce(Family::tensor_parallel);
                        }),
              Each(""));
}

// The statements agree, and the contents of the call do not.
TEST_P(Statements, AreComparedBesideTheContentsOfTheCall) {
  EXPECT_THAT(
      run_ranks(2, GetParam(),
                [](int rank) {
                  state(7, "x");
                  all_reduce(world_group(), full({2}, 1.0, DType::float32, {}), ReduceOp::sum,
                             {.family = Family::tensor_parallel,
                              .content_digest = static_cast<std::uint64_t>(rank) + 1,
                              .content_text = [rank] { return str("part ", rank); }});
                }),
      Each(AllOf(HasSubstr("do not agree"), HasSubstr("rank 0: part 0, x is 7"), HasSubstr("rank 1: part 1, x is 7"))));
}

TEST_P(Statements, AreAllComparedAndTheFirstAreShown) {
  EXPECT_THAT(run_ranks(2, GetParam(),
                        [](int rank) {
                          for (int i = 0; i < 20; ++i) state(i == 15 ? rank : 100 + i, "x");
                          reduce(Family::tensor_parallel);
                        }),
              Each(AllOf(HasSubstr("do not agree"), HasSubstr("x is 107, and later ones, which may differ"),
                         Not(HasSubstr("x is 108")))));
}

}  // namespace
}  // namespace lockstep::comm
