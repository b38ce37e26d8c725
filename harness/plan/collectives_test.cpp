#include "harness/plan/collectives.hpp"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

Collective gather(const std::string& owner, int line, std::int64_t bytes, bool least = false) {
  return {"data_parallel", "all_gather", "dp", 4, "forward", owner, line, bytes, least, 0};
}

TEST(Collectives, AreTalliedByKind) {
  const std::vector<Collective> all = {gather("a", 3, 8), gather("b", 3, 16), gather("a", 3, 8), gather("a", 5, 8)};
  EXPECT_EQ(tally(all).size(), 3u);
  EXPECT_EQ(tally(all, {.lines = false}).size(), 2u);
  const std::vector<Row> one = tally(all, {.lines = false, .owners = false});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].count, 4);
  EXPECT_EQ(one[0].bytes, 40);
}

TEST(Collectives, AgreeWhenCountsAndBytesDo) {
  const std::vector<Row> planned = tally({gather("a", 3, 8)});
  EXPECT_TRUE(differences(planned, tally({gather("a", 3, 8)})).empty());
  EXPECT_EQ(differences(planned, tally({gather("a", 3, 12)})).size(), 1u);
  EXPECT_EQ(differences(planned, tally({gather("a", 3, 4), gather("a", 3, 4)})).size(), 1u);
  EXPECT_EQ(differences(planned, tally({gather("b", 3, 8)})).size(), 2u);
  EXPECT_EQ(differences(planned, {}).size(), 1u);
  EXPECT_EQ(differences({}, planned).size(), 1u);
}

TEST(Collectives, MayPromiseBytesFromBelowOnly) {
  const std::vector<Row> planned = tally({gather("a", 3, 8, true)});
  EXPECT_TRUE(differences(planned, tally({gather("a", 3, 100)})).empty());
  EXPECT_EQ(differences(planned, tally({gather("a", 3, 4)})).size(), 1u);
}

TEST(Collectives, SayWhereTheyDiffer) {
  const std::vector<Difference> found = differences(tally({gather("model.a", 12, 8)}), {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 12);
  EXPECT_EQ(found[0].text,
            "data_parallel/all_gather over dp of 4 in forward for model.a (line 12): planned 1 of 8 bytes together, "
            "observed none");
}

TEST(Collectives, AreShownAsTheLastTurnAndInAll) {
  std::vector<Collective> all = {gather("a", 3, 8), gather("a", 3, 8), gather("b", 3, 24)};
  all[1].turn = all[2].turn = 7;
  EXPECT_EQ(table(all),
            "  phase    family         operation   group    last turn  bytes  in all  for\n"
            "  forward  data_parallel  all_gather  dp of 4          1      8       2  a\n"
            "  forward  data_parallel  all_gather  dp of 4          1     24       1  b\n");
  EXPECT_EQ(table({}), "");
}

}  // namespace
}  // namespace lockstep::plan
