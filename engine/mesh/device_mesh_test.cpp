#include "engine/mesh/device_mesh.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/test_gpu.hpp"
#include "engine/comm/test_ranks.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(DeviceMesh, GivesCoordinatesSlicesAndGroupsOfThisRank) {
  const auto failures = comm::testing_ranks::run_ranks(8, Kind::threads, [](int rank) {
    const DeviceMesh mesh({2, 2, 2}, {"pp", "dp", "tp"});
    require(mesh.coordinates() == std::vector<int>({rank / 4, rank / 2 % 2, rank % 2}), "coordinates");
    require(mesh.coordinate("dp") == rank / 2 % 2, "coordinate by name");
    require(mesh.group("dp").members() == std::vector<int>({rank & ~2, rank | 2}), "ranks along dp");
    require(mesh.group("dp").rank() == rank / 2 % 2, "rank within the group");
    require(mesh.group("dp").axis() == "dp", "the group knows its axis");
    require(&mesh.group("dp") == &mesh.group(1), "one group");
    const DeviceMesh inner = mesh.slice({"dp", "tp"});
    require(inner.num_ranks() == 4 && inner.size("tp") == 2, "slice");
    require(&inner.group("tp") == &mesh.group("tp"), "a slice has the same groups");
    require(inner.mesh_group().members()[0] == rank / 4 * 4, "all ranks of the slice");
    require(inner == mesh.slice({"dp", "tp"}), "equal");
    require(mesh.root_shape() == mesh.shape(), "a mesh that is no slice is its own root");
    require(inner.slice({"tp"}).root_shape() == mesh.shape(), "the root of a slice of a slice");
    require(DeviceMesh(inner.shape()).root_shape() == mesh.shape(), "the root of the shape of a slice");

    // Successive sums along two axes are the sum over the slice.
    const Tensor value = full({1}, rank, DType::float32, {});
    comm::all_reduce(mesh.group("tp"), value, comm::ReduceOp::sum);
    comm::all_reduce(mesh.group("dp"), value, comm::ReduceOp::sum);
    require(item(value) == (rank < 4 ? 6 : 22), "sum over the slice");
  });
  EXPECT_THAT(failures, Each(""));
}

// With a GPU per rank: the axes, and all ranks together.
TEST(DeviceMesh, OpensTheCommunicatorsOfItsGroups) {
  const auto failures = comm::testing_gpu::run_on_gpus(4, [](int, comm::testing_nccl::RecordingNccl& nccl) {
    const int num_streams = static_cast<int>(comm::streams_of_collectives.size());
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    mesh.prepare(comm::testing_gpu::gpu);
    comm::exchange(mesh.mesh_group(), "", "all have opened theirs");
    require(nccl.count("create 2") == 4 * 2 * num_streams, "communicators of the axes");
    require(nccl.count("create 4") == 4 * num_streams, "communicators of all ranks");
    comm::exchange(mesh.mesh_group(), "", "all have counted");
    for (comm::ProcessGroup* group : {&mesh.group("dp"), &mesh.group("tp"), &mesh.mesh_group()}) {
      const Tensor value = full({8}, 1, DType::float32, comm::testing_gpu::gpu);
      comm::all_reduce(*group, value, comm::ReduceOp::sum);
      require(item(slice(value, 0, 7, 8)) == group->size(), "sum over the group");
    }
    comm::exchange(mesh.mesh_group(), "", "all have added");
    require(static_cast<int>(nccl.num_open()) == 12 * num_streams, "a collective has opened a communicator");
    comm::exchange(mesh.mesh_group(), "", "all have counted again");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(DeviceMesh, HasNothingToPrepareOnTheHost) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh = DeviceMesh::world();
    mesh.prepare(device::host_device);
    require(mesh.group(0).sequence() == 0, "it has communicated");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(DeviceMesh, RefusesRanksOutsideTheWorld) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int rank) {
    const auto error_of = [](std::vector<int> sizes, std::vector<std::string> names, std::vector<int> ranks) {
      try {
        DeviceMesh(std::move(sizes), std::move(names), std::move(ranks));
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    const auto has = [](const std::string& text, const char* fragment) {
      require(text.find(fragment) != std::string::npos, text);
    };
    has(error_of({2}, {"a"}, {0, 5}), "there is no rank 5 in a world of 2");
    has(error_of({1}, {"a"}, {1 - rank}), rank == 0 ? "rank 0 is not in the mesh" : "rank 1 is not in the mesh");
    has(error_of({2}, {"a"}, {1, 1}), "rank 1 is listed twice");
    has(error_of({2, 1}, {"a", "a"}, {0, 1}), "`a` is given twice");
    has(error_of({3}, {"a"}, {0, 1}), "make 3 places for 2 ranks");
    require(DeviceMesh({2}, {"a"}, {1, 0}).coordinates()[0] == 1 - rank, "ranks in the given order");
    require(DeviceMesh::world().group("dp").size() == 2, "the world");
  });
  EXPECT_THAT(failures, Each(""));
}

// A mesh that cannot have its groups fails where it is made, not at its first collective.
TEST(DeviceMesh, MakesItsGroupsAtOnce) {
  const auto failures = comm::testing_ranks::run_ranks(8, Kind::threads, [](int rank) {
    if (rank != 0) return;
    const auto has_no_room = [](const auto& make) {
      try {
        make();
      } catch (const Error& error) {
        return std::string(error.what()).find("the control area") != std::string::npos;
      }
      return false;
    };
    std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
    while (!has_no_room([&] { DeviceMesh({8}, {"a"}, order); }))
      require(std::next_permutation(order.begin(), order.end()), "groups of all orders of the ranks");
    require(has_no_room([] { DeviceMesh({2, 4}, {"b", "c"}); }), "a mesh of all ranks in their order");
  });
  EXPECT_THAT(failures, Each(""));
}

}  // namespace
}  // namespace lockstep
