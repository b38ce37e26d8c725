#include "harness/run/rank_budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"
#include "harness/run/test_support.hpp"
#include "harness/run/values/json_values.hpp"

namespace lockstep::run {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;

constexpr std::int64_t mebi = 1 << 20;

TextOptions small() {
  TextOptions options;
  options.limits = {.memory_bytes = 16 * mebi, .output_bytes = 1 * mebi};
  return options;
}

constexpr const char* more_memory = "raise it with `limits: {memory_mb: ...}` in the scenario, or --memory-mb";

// The only failure of steps that exceed the limits of small().
std::string failure_of(const std::string& steps) {
  const Ran ran = run_steps(steps, small());
  EXPECT_EQ(ran.result.status, verdict::Status::FAIL) << steps;
  const std::vector<std::string> failures = ran.failures();
  EXPECT_EQ(failures.size(), 1u) << steps;
  return failures.empty() ? "" : failures.front();
}

TEST(RankBudget, GrowingListFailsAtItsStep) {
  EXPECT_THAT(failure_of(R"yaml(
  - let: {x: "[]"}
  - repeat: 100
    steps:
      - let: {x: "x + [range(10000)]"}
)yaml"),
              AllOf(StartsWith("let 6: "), HasSubstr("a list of 10000 items needs"),
                    HasSubstr("of the 16 MiB that a rank may use"), HasSubstr(more_memory)));
  EXPECT_THAT(failure_of("  - let: {x: \"[[range(10000) for i in range(10000)] for j in range(10000)]\"}\n"),
              StartsWith("let 2: "));
}

TEST(RankBudget, NestedSharedListFailsBeforeItIsWrittenOut) {
  EXPECT_THAT(failure_of(R"yaml(
  - let: {x: "[1]"}
  - repeat: 150
    steps:
      - let: {x: "[x, x]"}
)yaml"),
              AllOf(StartsWith("let 6: "), HasSubstr("shared items count each time")));
}

TEST(RankBudget, GrowingTextFailsAtItsStep) {
  for (const char* twice : {"x + x", "text([x, x])", "text({'a': x, 'b': x})"}) {
    EXPECT_THAT(failure_of(str("  - let: {x: \"'0123456789'\"}\n  - repeat: 100\n    steps:\n      - let: {x: \"",
                               twice, "\"}\n")),
                AllOf(StartsWith("let 5: "), HasSubstr("of the 16 MiB that a rank may use")))
        << twice;
  }
}

TEST(RankBudget, TensorsAndValuesCountTogether) {
  EXPECT_THAT(failure_of(R"yaml(
  - let: {x: ones(1024)}
  - repeat: 100
    steps:
      - let: {x: "cat([x, x])"}
)yaml"),
              AllOf(StartsWith("let 6: "), HasSubstr("go past the 16777216 that a rank may use"),
                    HasSubstr("(activation)"), HasSubstr("for values"), HasSubstr(more_memory)));
  // 10 MiB of tensors and 7 MiB of values: each alone is within the limit.
  const std::string values = "  - let: {v: \"[range(10000) for i in range(8)]\"}\n";
  const std::string tensor = "  - let: {t: \"zeros(2621440)\"}\n";
  EXPECT_THAT(failure_of(tensor + values), AllOf(StartsWith("let 3: "), HasSubstr("10 MiB by tensors")));
  EXPECT_THAT(failure_of(values + tensor), AllOf(StartsWith("let 3: "), HasSubstr("10485760 bytes for activation")));
}

TEST(RankBudget, DroppedMemoryCanBeUsedAgain) {
  const Ran ran = run_steps(R"yaml(
  - repeat: 50
    steps:
      - let: {x: "zeros(1048576)", v: "[range(10000) for i in range(5)]"}
      - drop: [x, v]
  - let: {sum: rank}
  - expect: sum + 1 == 1
)yaml",
                            small());
  EXPECT_EQ(ran.result.status, verdict::Status::PASS) << ran.result.reason;
}

TEST(RankBudget, RaisesAcceptsMemoryErrors) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "zeros(1024, 1024, 1024)"}
    raises: "that a rank may use"
  - let: {x: "[range(10000) for i in range(10000)]"}
    raises: "that a rank may use"
)yaml",
                            small());
  EXPECT_EQ(ran.result.status, verdict::Status::PASS) << ran.result.reason;
  EXPECT_EQ(ran.evidence().errors_expected, 2);
}

TEST(RankBudget, NestingFailsAtTheStepThatExceedsTheDepth) {
  for (const char* grow : {"[x]", "{'a': x}", "{1: [x]}"}) {
    EXPECT_THAT(failure_of(str("  - let: {x: 1}\n  - repeat: 1000000\n    steps:\n      - let: {x: \"", grow, "\"}\n")),
                AllOf(StartsWith("let 5: "), HasSubstr("deep: at most 200 are allowed")))
        << grow;
  }
  const Ran ran = run_steps(R"yaml(
  - let: {x: 1}
  - repeat: 200
    steps:
      - let: {x: "[x]"}
  - record: {x: x}
  - write: {file: x.json, value: x}
  - read: {file: x.json}
    as: y
  - expect_equal: [x, y]
)yaml",
                            small());
  EXPECT_EQ(ran.result.status, verdict::Status::PASS) << ran.result.reason;
}

TEST(RankBudget, ModulesHaveTheNestingLimitOfValues) {
  const std::string model = "  - model: Linear(1, 1)\n    as: m\n";
  const std::string wrap = "    steps:\n      - model: Sequential(m)\n        as: m\n";
  EXPECT_THAT(failure_of(str(model, "  - repeat: 1000000\n", wrap)),
              StartsWith("model 6: Sequential nests 201 modules: at most 200 are allowed"));
  const Ran ran = run_steps(
      str(model, "  - repeat: 199\n", wrap, "  - let: {y: \"m(ones(1, 1))\", x: rank}\n  - expect: x + 1 == 1\n"),
      small());
  EXPECT_EQ(ran.result.status, verdict::Status::PASS) << ran.result.reason;
}

TEST(RankBudget, MapsHaveALimitOfItems) {
  EXPECT_THAT(failure_of(R"yaml(
  - let: {m: "{i: i for i in range(10000)}"}
  - let: {m: "put(m, 10000, 1)"}
)yaml"),
              StartsWith("let 4: put(...): a map of 10001 items: at most 10000 are allowed"));
}

TEST(RankBudget, OutputCountsRecordsAndFiles) {
  EXPECT_THAT(failure_of(R"yaml(
  - let: {x: "[range(10000) for i in range(10)]"}
  - record: {a: x}
  - record: {a: x}
  - record: {b: x, c: x}
)yaml"),
              AllOf(StartsWith("record 6: the record `c` of "), HasSubstr("goes past the 1 MiB of output"),
                    HasSubstr("--output-mb")));
  EXPECT_THAT(
      failure_of(R"yaml(
  - let: {t: "{'x': zeros(65536)}"}
  - repeat: {times: 100, index: i}
    steps:
      - write: {file: one.safetensors, value: t}
  - repeat: {times: 100, index: i}
    steps:
      - write: {file: "f${i}.safetensors", value: t}
)yaml"),
      AllOf(StartsWith("write 9: the file `f2.safetensors` of "), HasSubstr("its other output has 798720 bytes")));
}

TEST(RankBudget, FilesCountInBlocks) {
  EXPECT_THAT(failure_of(R"yaml(
  - repeat: {times: 1000000, index: i}
    steps:
      - write: {file: "f${i}.json", value: i}
)yaml"),
              StartsWith("write 5: the file `f256.json` of 4096 bytes goes past"));
}

TEST(RankBudget, LongMessagesAreCut) {
  const std::string failure = failure_of(R"yaml(
  - let: {x: "'0123456789'"}
  - repeat: 12
    steps:
      - let: {x: "x + x"}
  - read: {file: "${x}.json"}
    as: y
)yaml");
  EXPECT_LT(failure.size(), 20000u);
}

TEST(JsonValues, ParserLimitsDepthAndItems) {
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      parse_json(text);
    } catch (const Error& error) {
      return error.message();
    }
    return "none";
  };
  EXPECT_EQ(error_of(std::string(200, '[') + std::string(200, ']')), "none");
  EXPECT_EQ(error_of(std::string(1'000'000, '[')), "the JSON nests deeper than 200");
  std::string maps;
  for (int i = 0; i < 201; ++i) maps += "{\"a\":";
  EXPECT_EQ(error_of(maps), "the JSON nests deeper than 200");
  std::string items = "[1";
  for (int i = 0; i < 10000; ++i) items += ",1";
  EXPECT_EQ(error_of(items + "]"), "the JSON has a list or map of more than 10000 items");
  EXPECT_THAT(error_of("[1,"), HasSubstr("malformed JSON: "));
  EXPECT_THAT(error_of("[1] 2"), HasSubstr("malformed JSON: "));
  EXPECT_THAT(error_of("18446744073709551615"), HasSubstr("does not fit in 64 bits"));
}

TEST(JsonValues, ParserReadsEveryKind) {
  EXPECT_EQ(to_text(parse_json(R"({"a": [1, -2.5, "x", null, true], "b": {"c": {}}})")),
            "{a:[1,-2.5,x,none,true],b:{c:{}}}");
  EXPECT_THROW(parse_json(R"({"b": {"a": 1, "a": 3}})"), Error);
  EXPECT_EQ(to_text(parse_json(R"([1, -2.5, "x", null, true, [], 9223372036854775807])")),
            "[1,-2.5,x,none,true,[],9223372036854775807]");
  EXPECT_EQ(to_text(parse_json("7")), "7");
}

TEST(JsonValues, ParserStopsAtTheMemoryLimit) {
  RankContext context(0, 1);
  const RankScope scope(context);
  RankBudget budget({.memory_bytes = mebi});
  std::string rows = "[";
  for (int i = 0; i < 1000; ++i) rows += i == 0 ? "[1,2,3,4,5,6,7,8,9,10]" : ",[1,2,3,4,5,6,7,8,9,10]";
  EXPECT_THROW(parse_json(rows + "]"), scenario::BudgetError);
}

}  // namespace
}  // namespace lockstep::run
