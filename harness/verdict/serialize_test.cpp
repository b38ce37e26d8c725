#include "harness/verdict/serialize.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"

namespace lockstep::verdict {
namespace {

using testing::HasSubstr;

RankOutcome full() {
  RankOutcome o;
  o.status = RankStatus::failed;
  o.end_expected = true;
  o.exit_code = -7;
  o.signal = 9;
  o.detail = std::string("a\0b\n", 4);
  o.last_step = {"forward", "a.yaml", 12, 4};
  o.end_time_ns = 123456789012345;
  o.evidence = Evidence{1, 2, 3, 4, 5, std::numeric_limits<double>::infinity(), {1e-6, 1e-5, 0.25}, 6, 7, 8, 9, 10};
  o.evidence.bits_relaxed = 11;
  Failure failure;
  failure.check = "expect_equal";
  failure.file = "b.yaml";
  failure.line = 9;
  failure.column = 2;
  failure.iteration = 4;
  failure.message = "1 of 2 elements";
  failure.time_ns = 77;
  failure.secondary = true;
  failure.scenario_line = 8;
  failure.note_size = 3;
  o.failures = {failure, Failure{}};
  o.collectives = {{"user", "all_reduce", "dp", 2, "forward", 3, 4, -1, ""}};
  o.bystander = true;
  o.plan_verdict = {true, "ended early: rank 3", {"a", "b"}};
  o.planning = {0.25, 1.5, 6};
  o.plan = {{"start_up", "broadcast", "dp", 2, "forward", 3, 40, true, 5, 60, ""}};
  o.memory = {{"parameter", 5}, {"peak_total", 6}};
  o.records = {{"losses", "[1]"}, {"again", "null"}};
  o.checks_reached = {"a", "b"};
  return o;
}

TEST(Serialize, ReadsBackEveryField) {
  const RankOutcome a = full();
  const RankOutcome b = outcome_from_bytes(to_bytes(a));
  EXPECT_EQ(b.status, RankStatus::failed);
  EXPECT_TRUE(b.end_expected);
  EXPECT_EQ(b.exit_code, -7);
  EXPECT_EQ(b.signal, 9);
  EXPECT_EQ(b.detail, a.detail);
  EXPECT_EQ(b.last_step.step, "forward");
  EXPECT_EQ(b.last_step.file, "a.yaml");
  EXPECT_EQ(b.last_step.line, 12);
  EXPECT_EQ(b.last_step.column, 4);
  EXPECT_EQ(b.end_time_ns, a.end_time_ns);
  EXPECT_EQ(b.evidence.comparisons, 1);
  EXPECT_EQ(b.evidence.trivial, 2);
  EXPECT_EQ(b.evidence.elements, 3);
  EXPECT_EQ(b.evidence.same_bits, 4);
  EXPECT_EQ(b.evidence.bits_required, 5);
  EXPECT_EQ(b.evidence.bits_relaxed, 11);
  EXPECT_TRUE(std::isinf(b.evidence.max_abs_difference));
  EXPECT_EQ(b.evidence.loosest.rtol, 1e-6);
  EXPECT_EQ(b.evidence.loosest.atol, 1e-5);
  EXPECT_EQ(b.evidence.loosest.of_largest, 0.25);
  EXPECT_EQ(b.evidence.collectives_checked, 6);
  EXPECT_EQ(b.evidence.orders_checked, 7);
  EXPECT_EQ(b.evidence.errors_expected, 8);
  EXPECT_EQ(b.evidence.planned_in_order, 9);
  EXPECT_EQ(b.evidence.conditions, 10);
  ASSERT_EQ(b.failures.size(), 2u);
  EXPECT_EQ(b.failures[0].check, "expect_equal");
  EXPECT_EQ(b.failures[0].file, "b.yaml");
  EXPECT_EQ(b.failures[0].line, 9);
  EXPECT_EQ(b.failures[0].column, 2);
  EXPECT_EQ(b.failures[0].iteration, 4);
  EXPECT_EQ(b.failures[0].message, "1 of 2 elements");
  EXPECT_EQ(b.failures[0].time_ns, 77);
  EXPECT_TRUE(b.failures[0].secondary);
  EXPECT_EQ(b.failures[0].scenario_line, 8);
  EXPECT_EQ(b.failures[0].note_size, 3u);
  EXPECT_EQ(b.failures[1].line, 0);
  ASSERT_EQ(b.collectives.size(), 1u);
  EXPECT_EQ(b.collectives[0].family, "user");
  EXPECT_EQ(b.collectives[0].operation, "all_reduce");
  EXPECT_EQ(b.collectives[0].axis, "dp");
  EXPECT_EQ(b.collectives[0].group_size, 2);
  EXPECT_EQ(b.collectives[0].phase, "forward");
  EXPECT_EQ(b.collectives[0].count, 3);
  EXPECT_EQ(b.collectives[0].bytes, 4);
  EXPECT_TRUE(b.bystander);
  EXPECT_TRUE(b.plan_verdict.is_judged);
  EXPECT_EQ(b.plan_verdict.left_out, a.plan_verdict.left_out);
  EXPECT_EQ(b.plan_verdict.reason, "ended early: rank 3");
  EXPECT_EQ(b.planning.seconds, 0.25);
  EXPECT_EQ(b.planning.rank_seconds, 1.5);
  EXPECT_EQ(b.planning.num_dry_runs, 6);
  ASSERT_EQ(b.plan.size(), 1u);
  EXPECT_EQ(b.plan[0].family, "start_up");
  EXPECT_EQ(b.plan[0].operation, "broadcast");
  EXPECT_EQ(b.plan[0].axis, "dp");
  EXPECT_EQ(b.plan[0].group_size, 2);
  EXPECT_EQ(b.plan[0].phase, "forward");
  EXPECT_EQ(b.plan[0].planned, 3);
  EXPECT_EQ(b.plan[0].planned_bytes, 40);
  EXPECT_TRUE(b.plan[0].bytes_are_least);
  EXPECT_EQ(b.plan[0].observed, 5);
  EXPECT_EQ(b.plan[0].observed_bytes, 60);
  EXPECT_EQ(b.memory, a.memory);
  EXPECT_EQ(b.records, a.records);
  EXPECT_EQ(b.checks_reached, a.checks_reached);
  // The same bytes again, so no field is lost.
  EXPECT_EQ(to_bytes(b), to_bytes(a));
}

TEST(Serialize, ReadsBackAnEmptyOutcome) {
  const RankOutcome b = outcome_from_bytes(to_bytes(RankOutcome{}));
  EXPECT_EQ(b.status, RankStatus::finished);
  EXPECT_TRUE(b.failures.empty());
}

TEST(Serialize, RefusesEveryTruncation) {
  const std::string bytes = to_bytes(full());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(outcome_from_bytes(std::string_view(bytes).substr(0, length)), Error) << length << " bytes";
  }
  EXPECT_THROW(outcome_from_bytes(bytes + "x"), Error);
}

TEST(Serialize, RefusesEveryAlteredByte) {
  const std::string bytes = to_bytes(full());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x21);
    EXPECT_THROW(outcome_from_bytes(altered), Error) << "byte " << at;
  }
}

// The bytes with another content behind a valid head.
std::string with_content(const std::string& bytes, const std::string& content) {
  std::string made = bytes.substr(0, 4);
  for (const std::uint64_t number : {static_cast<std::uint64_t>(content.size()), fnv1a(content)})
    made.append(reinterpret_cast<const char*>(&number), sizeof number);
  return made + content;
}

std::string refusal_of(const std::string& bytes) {
  try {
    outcome_from_bytes(bytes);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Serialize, SaysWhatIsWrongWithTheContent) {
  const std::string bytes = to_bytes(full()), content = bytes.substr(20);
  EXPECT_EQ(refusal_of(with_content(bytes, content)), "");
  EXPECT_THAT(refusal_of(with_content(bytes, content + "x")), HasSubstr("bytes follow its end"));
  EXPECT_THAT(refusal_of(with_content(bytes, "")), HasSubstr("it stops in the middle"));
  EXPECT_THAT(refusal_of("LRO"), HasSubstr("it stops in the middle"));
  EXPECT_THAT(refusal_of("LRO2" + bytes.substr(4)), HasSubstr("it does not begin with the mark of an outcome"));
  EXPECT_THAT(refusal_of(bytes + "x"), HasSubstr("bytes"));
  for (const int status : {-1, static_cast<int>(RankStatus::count_), 1000}) {
    std::string altered = content;
    std::memcpy(altered.data(), &status, sizeof status);
    EXPECT_THAT(refusal_of(with_content(bytes, altered)), HasSubstr("its status is unknown")) << status;
  }
  std::string altered = content;
  altered[sizeof(RankStatus)] = 2;  // end_expected
  EXPECT_THAT(refusal_of(with_content(bytes, altered)), HasSubstr("a truth value is neither 0 nor 1"));
  altered[sizeof(RankStatus)] = 0;
  EXPECT_FALSE(outcome_from_bytes(with_content(bytes, altered)).end_expected);
}

// Random content behind a valid checksum is refused or read, and never takes more memory than the bytes justify.
TEST(Serialize, RefusesOrReadsRandomContentWithAValidChecksum) {
  const std::string bytes = to_bytes(full());
  const std::size_t header = 4 + 8 + 8;
  std::mt19937 generator(7);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string altered = bytes;
    for (int i = 0; i < 4; ++i)
      altered[header + generator() % (bytes.size() - header)] = static_cast<char>(generator());
    const std::uint64_t hash = fnv1a(std::string_view(altered).substr(header));
    std::memcpy(altered.data() + 12, &hash, sizeof hash);
    try {
      outcome_from_bytes(altered);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace lockstep::verdict
