#include "harness/plan/collectives.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/core/text.hpp"

namespace lockstep::plan {
namespace {

Collective gather(const std::string& owner, int line, std::int64_t bytes, bool least = false) {
  return {"data_parallel", "all_gather", "dp", 4, "forward", owner, line, bytes, least, 0};
}

TEST(Collectives, AreTalliedByKind) {
  const std::vector<Collective> all = {gather("a", 3, 8), gather("b", 3, 16), gather("a", 3, 8), gather("a", 5, 8)};
  EXPECT_EQ(tally(all).size(), 3u);
  EXPECT_EQ(tally(all, {.lines = false}).size(), 2u);
  const std::vector<Row> merged = tally(all, {.lines = false, .owners = false});
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].count, 4);
  EXPECT_EQ(merged[0].bytes, 40);
}

TEST(Collectives, AgreeWhenCountsAndBytesAgree) {
  const std::vector<Row> planned = tally({gather("a", 3, 8)});
  EXPECT_TRUE(differences(planned, tally({gather("a", 3, 8)})).empty());
  EXPECT_EQ(differences(planned, tally({gather("a", 3, 12)})).size(), 1u);
  EXPECT_EQ(differences(planned, tally({gather("a", 3, 4), gather("a", 3, 4)})).size(), 1u);
  EXPECT_EQ(differences(planned, tally({gather("b", 3, 8)})).size(), 2u);
  EXPECT_EQ(differences(planned, {}).size(), 1u);
  EXPECT_EQ(differences({}, planned).size(), 1u);
}

TEST(Collectives, MayHaveALowerBoundOfBytes) {
  const std::vector<Row> planned = tally({gather("a", 3, 8, true)});
  EXPECT_TRUE(differences(planned, tally({gather("a", 3, 100)})).empty());
  EXPECT_EQ(differences(planned, tally({gather("a", 3, 4)})).size(), 1u);
}

TEST(Collectives, NameTheKindThatDiffers) {
  const std::vector<Difference> found = differences(tally({gather("model.a", 12, 8)}), {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 12);
  EXPECT_EQ(found[0].text,
            "data_parallel/all_gather over dp of 4 in forward for model.a (line 12): planned 1 of 8 bytes together, "
            "observed none");
}

// ---- order ----
Collective of(const std::string& operation, const std::string& owner, const std::string& phase, int turn = 0) {
  Collective collective = gather(owner, phase == "forward" ? 12 : 13, 8);
  collective.operation = operation;
  collective.phase = phase;
  collective.turn = turn;
  return collective;
}

std::vector<Collective> one_step() {
  return {of("all_gather", "a", "forward", 2),      of("all_gather", "b", "forward", 2),
          of("all_gather", "b", "backward", 2),     of("all_gather", "a", "backward", 2),
          of("reduce_scatter", "b", "backward", 2), of("reduce_scatter", "a", "backward", 2)};
}

TEST(CollectivesInOrder, IgnoreTurnsWhenCompared) {
  std::vector<Collective> observed = one_step();
  for (Collective& collective : observed) collective.turn = 0;
  EXPECT_FALSE(first_order_difference(one_step(), observed).has_value());
  EXPECT_FALSE(first_order_difference({}, {}).has_value());
}

TEST(CollectivesInOrder, ReportTheFirstDifference) {
  std::vector<Collective> observed = one_step();
  std::swap(observed[3], observed[4]);
  std::optional<Difference> found = first_order_difference(one_step(), observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, "backward, 2nd (line 13, turn 2): planned all_gather of a, observed reduce_scatter of b");
  EXPECT_EQ(found->line, 13);

  observed = one_step();
  observed.erase(observed.begin() + 1);
  found = first_order_difference(one_step(), observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text,
            "forward, 2nd (line 12, turn 2): planned all_gather of b (data_parallel over dp of 4, 8 bytes, forward, "
            "line 12), observed all_gather of b (data_parallel over dp of 4, 8 bytes, backward, line 13)");

  observed = one_step();
  observed.erase(observed.begin() + 1, observed.begin() + 3);
  found = first_order_difference(one_step(), observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text,
            "forward, 2nd (line 12, turn 2): planned all_gather of b, observed all_gather of a in backward");

  observed = one_step();
  observed.pop_back();
  found = first_order_difference(one_step(), observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, "backward, 4th (line 13, turn 2): planned reduce_scatter of a, observed none");

  observed = one_step();
  observed.push_back(of("all_gather", "c", "backward"));
  found = first_order_difference(one_step(), observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, "backward, 5th (line 13, turn 2): planned none, observed all_gather of c");
  found = first_order_difference({}, observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, "forward, 1st (line 12): planned none, observed all_gather of a");
}

TEST(CollectivesInOrder, AreComparedByBytesUnlessTheseAreALowerBound) {
  std::vector<Collective> planned = {gather("a", 3, 8), gather("a", 3, 16)}, observed = {planned[1], planned[0]};
  EXPECT_TRUE(differences(tally(planned), tally(observed)).empty());
  const std::optional<Difference> found = first_order_difference(planned, observed);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text,
            "forward, 1st (line 3): planned all_gather of a (data_parallel over dp of 4, 8 bytes, forward, line 3), "
            "observed all_gather of a (data_parallel over dp of 4, 16 bytes, forward, line 3)");
  for (Collective& collective : planned) collective.bytes_are_least = true;
  EXPECT_TRUE(first_order_difference(planned, observed).has_value());
  planned[1].bytes = 4;
  EXPECT_FALSE(first_order_difference(planned, observed).has_value());
}

TEST(CollectivesInOrder, PrintOneLinePerPhaseOfTheLastTurn) {
  std::vector<Collective> all = one_step();
  all.insert(all.begin(), of("all_gather", "earlier", "forward", 1));
  Collective start = of("broadcast", "net", "forward", 2);
  start.family = "start_up";
  all.insert(all.begin() + 1, {start, start});
  EXPECT_EQ(sequence(all),
            "  forward    start_up broadcast net x2; all_gather a, b\n"
            "  backward   all_gather b, a; reduce_scatter b, a\n");
  EXPECT_EQ(sequence({}), "");
}

TEST(CollectivesInOrder, ShortenALongLineInTheMiddle) {
  std::vector<Collective> all;
  for (int i = 0; i < 100; ++i) all.push_back(of("all_gather", str("m", i), "forward"));
  const std::string text = sequence(all);
  EXPECT_NE(text.find("m22, m23 ... 64 more ... all_gather m88,"), std::string::npos) << text;
  EXPECT_EQ(text.find("m24"), std::string::npos);
  std::size_t longest = 0, begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin = end + 1))
    longest = std::max(longest, end - begin);
  EXPECT_LE(longest, 112u);
}

TEST(Collectives, PrintCountsOfTheLastTurnAndInAll) {
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
