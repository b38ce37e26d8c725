// Mismatched collectives: every rank's error names the property that differs, with the value of each rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/process_group.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor floats(const Dims& sizes, device::Device at = {}) { return full(sizes, 1.0, DType::float32, at); }

void set_line(const std::string& place) { RankContext::current().place = place; }

class Agreement : public ::testing::TestWithParam<Kind> {
 protected:
  // Every rank fails with a message that contains all fragments.
  template <class... Fragments>
  void expect_named(int size, const Body& body, Fragments... fragments) {
    for (const std::string& failure : run_ranks(size, GetParam(), body))
      EXPECT_THAT(failure, AllOf(HasSubstr("do not agree on"), HasSubstr(fragments)...));
  }
  void expect_success(int size, const Body& body) {
    for (const std::string& failure : run_ranks(size, GetParam(), body)) EXPECT_EQ(failure, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Agreement, ::testing::Values(Kind::threads, Kind::processes),
                         [](const auto& of) { return of.param == Kind::threads ? "threads" : "processes"; });

TEST_P(Agreement, NamesShapeAndDim) {
  expect_named(
      2,
      [](int rank) {
        // A scenario that gathers (4, 2) along its last dim passes tensors in which that dim is swapped to the front.
        all_gather(world_group(), floats({4, 4}), floats({2, 4}), {.dim = rank});
      },
      "the shape (rank 0: (2, 4); rank 1: (4, 2))", "the dim (rank 0: 0; rank 1: 1)",
      "rank 0 calls all_gather of (2, 4) float32 along dim 0", "rank 1 calls all_gather of (4, 2) float32 along dim 1");
  expect_named(
      2,
      [](int rank) {
        all_reduce(world_group(), floats(rank == 0 ? Dims{2, 3} : Dims{3, 2}), ReduceOp::sum);
      },
      "the shape (rank 0: (2, 3); rank 1: (3, 2))");
}

TEST_P(Agreement, NamesTheDevice) {
  expect_named(
      3,
      [](int rank) {
        const device::Device at{rank == 1 ? device::Kind::sim : device::Kind::cpu, 0};
        all_reduce(world_group(), floats({4}, at), ReduceOp::sum).synchronize();
      },
      "the device (ranks 0, 2: cpu; rank 1: sim)");
}

TEST_P(Agreement, NamesTheCallSite) {
  expect_named(
      2,
      [](int rank) {
        set_line(rank == 0 ? "own.yaml:10" : "own.yaml:12");
        all_reduce(world_group(), floats({4}), ReduceOp::sum);
      },
      "the place in the program (rank 0: own.yaml:10; rank 1: own.yaml:12)");
  expect_named(
      2,
      [](int rank) {
        set_line(rank == 0 ? "one.yaml:10" : "other.yaml:10");
        barrier(world_group());
      },
      "the place in the program (rank 0: one.yaml:10; rank 1: other.yaml:10)");
}

TEST_P(Agreement, MatchesCallSitesOfOneName) {
  expect_success(2, [](int rank) {
    set_line(rank == 0 ? "own.yaml:10" : "own.yaml:12");
    set_call_site_name("norms");
    const Tensor tensor = floats({4});
    all_reduce(world_group(), tensor, ReduceOp::sum);
    require(values_of<float>(tensor) == std::vector<float>(4, 2.0f), "the sum");
  });
  expect_named(
      2,
      [](int rank) {
        set_line("own.yaml:10");
        set_call_site_name(rank == 0 ? "norms" : "losses");
        all_reduce(world_group(), floats({4}), ReduceOp::sum);
      },
      "the place in the program (rank 0: `norms`; rank 1: `losses`)");
  expect_named(
      2,
      [](int rank) {
        set_line("own.yaml:10");
        if (rank == 1) set_call_site_name("norms");
        all_reduce(world_group(), floats({4}), ReduceOp::sum);
      },
      "the place in the program (rank 0: own.yaml:10; rank 1: `norms`)");
}

TEST_P(Agreement, NamesTheMeshAxis) {
  expect_named(
      2,
      [](int rank) {
        all_reduce(group_of({0, 1}, rank == 0 ? "dp" : "tp"), floats({4}), ReduceOp::sum);
      },
      "the mesh axis (rank 0: dp; rank 1: tp)");
  expect_named(
      2,
      [](int rank) {
        all_reduce(rank == 0 ? world_group() : group_of({0, 1}, "tp"), floats({4}), ReduceOp::sum);
      },
      "the mesh axis (rank 0: none; rank 1: tp)");
}

TEST_P(Agreement, NamesPhaseAndFamilyOfModuleCollectives) {
  expect_named(
      2,
      [](int rank) {
        const PhaseScope phase(rank == 0 ? Phase::forward : Phase::backward);
        all_gather(world_group(), floats({8}), floats({4}), {.family = Family::data_parallel, .owner = "net.0"});
      },
      "the phase (rank 0: forward; rank 1: backward)");
  expect_named(
      2,
      [](int rank) {
        all_reduce(world_group(), floats({4}), ReduceOp::sum,
                   {.family = rank == 0 ? Family::data_parallel : Family::start_up, .owner = "net"});
      },
      "the family (rank 0: data_parallel; rank 1: start_up)");
}

// An all-gather may start in a prefetch on one rank and in an explicit call on another.
TEST_P(Agreement, IgnoresLinesOfModuleCollectivesAndTransfers) {
  expect_success(2, [](int rank) {
    set_line(rank == 0 ? "own.yaml:10" : "own.yaml:12");
    all_gather(world_group(), floats({8}), floats({4}), {.family = Family::data_parallel, .owner = "net.0"});
    const PhaseScope phase(rank == 0 ? Phase::forward : Phase::backward);
    if (rank == 0)
      send(world_group(), floats({4}), 1);
    else
      receive(world_group(), floats({4}), 0);
  });
  expect_named(
      2,
      [](int rank) {
        if (rank == 0)
          send(world_group(), floats({2, 3}), 1);
        else
          receive(world_group(), floats({3, 2}), 0);
      },
      "the shape (rank 0: (2, 3); rank 1: (3, 2))");
}

TEST_P(Agreement, NamesThePurposeOfAnExchange) {
  expect_named(
      2, [](int rank) { comm::exchange(world_group(), "x", rank == 0 ? "model state" : "checks across ranks"); },
      "the purpose of the exchange (rank 0: model state; rank 1: checks across ranks)");
}

// The recorder truncates long texts; the digest covers all of them.
TEST_P(Agreement, ComparesAllOfALongCallSite) {
  expect_named(
      2,
      [](int rank) {
        set_line(str(rank == 0 ? "a" : "b", std::string(200, '/'), "own.yaml:10"));
        all_reduce(world_group(), floats({4}), ReduceOp::sum);
      },
      "a name that is cut here (of the mesh axis, the purpose or the place in the program)");
}

// Names of axes are compared, and shown, by more than their first characters.
TEST_P(Agreement, NamesLongAxes) {
  const std::string name(15, 'a');
  expect_named(
      2,
      [&](int rank) {
        all_reduce(group_of({0, 1}, str(name, rank)), floats({4}), ReduceOp::sum);
      },
      str("the mesh axis (rank 0: ", name, "0; rank 1: ", name, "1)"));
}

}  // namespace
}  // namespace lockstep::comm
