// The expected times are arithmetic by hand.
#include "harness/plan/machine_model.hpp"

#include <fstream>
#include <iterator>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two nodes of four: 1 us and 1 GB/s inside, 10 us and 0.1 GB/s between them.
constexpr const char* two_nodes = R"yaml(
machine: two nodes
summary: For a test.
levels:
  - {name: node, ranks: 4, latency_us: 1, bandwidth_gb_per_s: 1}
  - name: network
    ranks: 8
    latency_us: 10
    bandwidth_gb_per_s: 0.1
    algorithms: {all_reduce: tree, all_gather: tree, broadcast: tree, all_to_all: tree, barrier: tree}
)yaml";

Machine machine() { return machine_from_text(two_nodes, "two_nodes.machine"); }

TEST(MachineModel, FindsTheInnermostLevelThatJoinsAllMembers) {
  EXPECT_EQ(level_of(machine(), {0, 3}).name, "node");
  EXPECT_EQ(level_of(machine(), {4, 5, 7}).name, "node");
  EXPECT_EQ(level_of(machine(), {3, 4}).name, "network");
  EXPECT_EQ(level_of(machine(), {7, 0}).name, "network");
  EXPECT_THROW(level_of(machine(), {0, 8}), Error);
}

TEST(MachineModel, TimesRings) {
  const std::vector<int> node = {0, 1, 2, 3};
  // 3 messages of a quarter of 4000 bytes at 1 ns per byte.
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "all_gather", node, 4000), 3e-6 + 3e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "reduce_scatter", node, 4000), 3e-6 + 3e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "all_to_all", node, 4000), 3e-6 + 3e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "gather", node, 4000), 3e-6 + 3e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "all_reduce", node, 4000), 6e-6 + 6e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "broadcast", node, 4000), 3e-6 + 4e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "barrier", node, 0), 6e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "send", {0, 1}, 4000), 1e-6 + 4e-6);
}

TEST(MachineModel, TimesTrees) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  // 8 members: 3 rounds of 10 us; 10 ns per byte.
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "all_reduce", all, 800), 2 * 3 * (10e-6 + 8e-6));
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "all_gather", all, 800), 3 * 10e-6 + 7e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "broadcast", all, 800), 3 * (10e-6 + 8e-6));
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "all_to_all", all, 800), 3 * (10e-6 + 4e-6));
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "barrier", all, 0), 3 * 10e-6);
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "reduce_scatter", all, 800), 7 * 10e-6 + 7e-6);  // a ring unless stated
  EXPECT_DOUBLE_EQ(seconds_of(machine(), "broadcast", {0, 3, 4, 5, 6}, 800), 3 * (10e-6 + 8e-6));  // log 5, rounded up
}

TEST(MachineModel, TakesNoTimeForOneRank) { EXPECT_EQ(seconds_of(machine(), "all_reduce", {5}, 1 << 20), 0.0); }

std::string refusal(const std::string& text) {
  try {
    machine_from_text(text, "m.machine");
  } catch (const scenario::ScenarioError& error) {
    return error.what();
  }
  return "";
}

TEST(MachineModel, ReportsMistakesWithTheirPlaces) {
  EXPECT_THAT(refusal(""), HasSubstr("m.machine:1:1"));
  EXPECT_THAT(refusal("machine: m\n"), HasSubstr("`levels` is missing"));
  EXPECT_THAT(refusal("machine: m\nlevels: []\n"), HasSubstr("at least one level"));
  EXPECT_THAT(refusal("machine: m\nlevels: 3\nlink: fast\n"),
              AllOf(HasSubstr("must be a list"), HasSubstr("m.machine:3:1: unknown key `link`")));
  const auto level = [](const std::string& of) { return "machine: m\nlevels:\n  - {" + of + "}\n"; };
  const std::string well = "name: a, ranks: 2, latency_us: 1, bandwidth_gb_per_s: 1";
  EXPECT_EQ(refusal(level(well)), "");
  EXPECT_THAT(refusal(level("name: a, ranks: 2, latency_us: 1")), HasSubstr("`bandwidth_gb_per_s` is missing"));
  for (const char* wrong : {"0", "-1", "x", "1e99", "nan"})
    EXPECT_THAT(refusal(level(str("name: a, ranks: 2, latency_us: 1, bandwidth_gb_per_s: ", wrong))),
                HasSubstr("must be a number above 0"))
        << wrong;
  EXPECT_THAT(refusal(level("name: a, ranks: 2.5, latency_us: 1, bandwidth_gb_per_s: 1")), HasSubstr("whole number"));
  EXPECT_THAT(refusal(level(well + ", algorithms: {all_reduce: star}")), HasSubstr("unknown algorithm `star`"));
  EXPECT_THAT(refusal(level(well + ", algorithms: {reduce: ring}")), HasSubstr("unknown key `reduce`"));
  EXPECT_THAT(refusal(level(well) + "  - {name: b, ranks: 3, latency_us: 1, bandwidth_gb_per_s: 1}\n"),
              HasSubstr("give a larger multiple of 2"));
}

TEST(MachineModel, ReadsTheMachinesThatComeAlong) {
  const auto read = [](const std::string& name) {
    const std::string path = LOCKSTEP_SOURCE_DIR "/scenarios/machines/" + name;
    std::ifstream file(path);
    return machine_from_text({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, path);
  };
  EXPECT_EQ(read("node_of_8.machine").num_ranks(), 8);
  const Machine cluster = read("cluster_of_4096.machine");
  EXPECT_EQ(cluster.num_ranks(), 4096);
  EXPECT_EQ(level_of(cluster, {0, 7}).name, "node");
  EXPECT_EQ(level_of(cluster, {0, 8}).name, "pod");
  EXPECT_EQ(level_of(cluster, {0, 256}).name, "cluster");
}

}  // namespace
}  // namespace lockstep::plan
