#include "harness/cli/bench.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Summarize, GivesMedianAndPercentiles) {
  const BenchRow row = summarize("steps", "tiny", "ms", {11, 1, 2, 10, 3, 9, 4, 8, 5, 7, 6});
  EXPECT_EQ(row.median, 6);
  EXPECT_EQ(row.low, 2);
  EXPECT_EQ(row.high, 10);
  EXPECT_EQ(row.rounds, 11);
  EXPECT_EQ(row.group, "steps");
  EXPECT_EQ(row.name, "tiny");
  EXPECT_EQ(row.unit, "ms");
  const BenchRow one = summarize("steps", "tiny", "ms", {4.5});
  EXPECT_EQ(one.low, 4.5);
  EXPECT_EQ(one.median, 4.5);
  EXPECT_EQ(one.high, 4.5);
  EXPECT_EQ(summarize("steps", "tiny", "ms", {4, 2}).median, 3) << "the mean of the two middle ones";
  EXPECT_THROW(summarize("steps", "tiny", "ms", {}), InternalError);
}

TEST(BenchJson, HasTheFieldsInTheirOrder) {
  BenchRow row = summarize("steps", "tiny", "ms", {1.5});
  row.params = {{"model", "\"tiny\""}, {"world_size", "2"}, {"world_sizes", "[2,8]"}};
  EXPECT_EQ(to_json(row), R"({"kind":"bench","group":"steps","name":"tiny","params":{"model":"tiny","world_size":2,)"
                          R"("world_sizes":[2,8]},"unit":"ms","median":1.5,"low":1.5,"high":1.5,"rounds":1})");
}

TEST(IsWanted, MatchesAnyPartOfTheName) {
  BenchOptions options;
  EXPECT_TRUE(is_wanted(options, "all_gather"));
  options.only = "gather";
  EXPECT_TRUE(is_wanted(options, "all_gather"));
  EXPECT_FALSE(is_wanted(options, "broadcast"));
}

std::string refusal(const BenchOptions& options) {
  try {
    bench(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Bench, RefusesAGroupThatDoesNotExist) {
  EXPECT_THAT(refusal({.groups = {"launch", "kernel"}}),
              AllOf(HasSubstr("unknown benchmark `kernel`"), HasSubstr("one of collectives, steps, launch, kernels")));
}

TEST(Bench, RefusesADeviceWhereItMeasuresNone) {
  EXPECT_THAT(refusal({.groups = {"steps", "launch"}, .device = "sim"}),
              AllOf(HasSubstr("`bench launch` on sim"), HasSubstr("leave --device out")));
}

TEST(Bench, NamesTheDeviceOfAMeasurement) {
  const BenchOptions options{
      .groups = {"collectives"}, .json = true, .rounds = 1, .world_sizes = {2}, .device = "sim", .only = "broadcast"};
  const Ended ended = in_child([&] { return bench(options); });
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(R"("params":{"bytes":1024,"world_size":2,"device":"sim"},"unit":"us")"));
}

TEST(Bench, RefusesANameThatMatchesNothing) {
  EXPECT_THAT(refusal({.groups = {"launch"}, .only = "no_such"}), HasSubstr("nothing matches --only no_such"));
}

TEST(Bench, RefusesSameBytesWithoutTwoWorldSizes) {
  EXPECT_THAT(refusal({.groups = {"collectives"}, .world_sizes = {2, 4, 8}, .same_bytes = true}),
              HasSubstr("--same-bytes compares two numbers of ranks, not 3"));
}

TEST(Bench, PrintsARowPerMeasurement) {
  const BenchOptions options{.groups = {"launch"}, .json = true, .rounds = 1, .world_sizes = {1, 2}, .only = "thread"};
  const Ended ended = in_child([&] { return bench(options); });
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr(R"("name":"thread","params":{"world_size":1},"unit":"ms")"),
                               HasSubstr(R"("params":{"world_size":2})"), Not(HasSubstr("process"))));
  BenchOptions table = options;
  table.json = false;
  EXPECT_THAT(in_child([&] { return bench(table); }).out, HasSubstr("launch       thread           world_size=1 "));
}

}  // namespace
}  // namespace lockstep::cli
