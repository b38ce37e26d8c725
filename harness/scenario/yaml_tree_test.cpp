#include "harness/scenario/yaml_tree.hpp"

#include <chrono>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/text.hpp"

namespace lockstep::scenario {
namespace {

using ::testing::HasSubstr;

std::string errors_of(const std::string& text) {
  Diagnostics diagnostics;
  const YamlFile yaml(text, "a.yaml", diagnostics);
  std::string out;
  for (const Diagnostic& item : diagnostics.sorted())
    out += str(out.empty() ? "" : "\n", to_text(item.place), ": ", item.message);
  return out;
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(YamlTree, KeepsPlacesAndKinds) {
  Diagnostics diagnostics;
  const YamlFile yaml("a: [x, 'y']\nb:\n  c: >-\n    one\n    two\n", "a.yaml", diagnostics);
  ASSERT_TRUE(diagnostics.empty()) << diagnostics.text();
  const YamlNode& root = *yaml.root();
  ASSERT_EQ(root.entries.size(), 2u);
  const YamlNode& list = *root.entries[0].second;
  EXPECT_TRUE(list.items[0]->plain);
  EXPECT_TRUE(list.items[0]->in_flow);
  EXPECT_FALSE(list.items[1]->plain);
  EXPECT_EQ(to_text(list.items[1]->place), "a.yaml:1:8");
  const YamlNode& folded = *root.entries[1].second->entries[0].second;
  EXPECT_EQ(folded.text, "one two");
  EXPECT_FALSE(folded.in_flow);
  const SourceText source = yaml.source_of(folded);
  EXPECT_EQ(source.places[0], std::pair(4, 5));  // o
  EXPECT_EQ(source.places[4], std::pair(5, 5));  // t of two
}

TEST(YamlTree, FollowsQuotesEscapesAndAnchors) {
  Diagnostics diagnostics;
  const YamlFile yaml("a: &n 'it''s x'\nb: \"x\\ty\"\n", "a.yaml", diagnostics);
  const SourceText single = yaml.source_of(*yaml.root()->entries[0].second);
  EXPECT_EQ(single.text, "it's x");
  EXPECT_EQ(single.places[0], std::pair(1, 8));
  EXPECT_EQ(single.places[5], std::pair(1, 14));
  const SourceText twice = yaml.source_of(*yaml.root()->entries[1].second);
  EXPECT_EQ(twice.places[0], std::pair(2, 5));
  EXPECT_EQ(twice.places[2], std::pair(2, 8));
}

TEST(YamlTree, RefusesAmbiguousWords) {
  for (const char* word : {"yes", "No", "ON", "off", "null", "Null", "~", "True", "FALSE", "yEs"}) {
    EXPECT_THAT(errors_of(str("a: ", word, "\n")), HasSubstr(str("a.yaml:1:4: the plain word `", word, "` is refused")))
        << word;
    EXPECT_THAT(errors_of(str(word, ": 1\n")), HasSubstr("a.yaml:1:1: ")) << word;
    EXPECT_EQ(errors_of(str("a: '", word, "'\n")), "") << word;
  }
  for (const char* word : {"y", "n", "true", "false", "none", "yesterday", "0", "0.5", "-0", "10"}) {
    EXPECT_EQ(errors_of(str("a: ", word, "\n")), "") << word;
  }
  EXPECT_EQ(errors_of("a: no\n"),
            "a.yaml:1:4: the plain word `no` is refused, because YAML 1.1 gives it another meaning; write `false`, or "
            "quote it");
}

TEST(YamlTree, RefusesLeadingZeros) {
  for (const char* number : {"010", "-007", "00", "01.5", "+08"}) {
    EXPECT_THAT(errors_of(str("a: ", number, "\n")), HasSubstr("a.yaml:1:4: leading zeros are refused")) << number;
  }
  EXPECT_EQ(errors_of("a: '010'\n"), "");
}

TEST(YamlTree, RefusesAmbiguousForms) {
  EXPECT_EQ(errors_of("a: 1\nb: 2\na: 3\n"), "a.yaml:3:1: the key `a` occurs twice; the first is in line 1");
  EXPECT_EQ(errors_of("a: {b: 1, 'b': 2}\n"), "a.yaml:1:11: the key `b` occurs twice; the first is in line 1");
  EXPECT_EQ(errors_of("a: &x {b: 1}\nc:\n  <<: *x\n"),
            "a.yaml:3:3: merge keys (`<<`) are refused; write the entries out");
  EXPECT_EQ(errors_of("a: !!int 3\n"), "a.yaml:1:4: tags are refused: `tag:yaml.org,2002:int`");
  EXPECT_EQ(errors_of("a: !local [1]\n"), "a.yaml:1:4: tags are refused: `!local`");
  EXPECT_EQ(errors_of("? [a]\n: 1\n"), "a.yaml:1:3: a key must be a word or a text");
  EXPECT_EQ(errors_of("a: 1\n---\nb: 2\n"), "a.yaml:2:1: a second YAML document; a file holds one scenario or routine");
}

TEST(YamlTree, RefusesCyclesAndAliasBombs) {
  EXPECT_EQ(errors_of("a: &a [1, *a]\n"), "a.yaml:1:11: an alias within the node of its own anchor: a cycle");
  EXPECT_EQ(errors_of("a: &a {b: {c: *a}}\n"), "a.yaml:1:15: an alias within the node of its own anchor: a cycle");
  EXPECT_EQ(errors_of(str("a: &a 1\nb: [", repeated("*a, ", 50), "1]\n")), "");
  EXPECT_THAT(errors_of(str("a: &a 1\nb: [", repeated("*a, ", 51), "1]\n")), HasSubstr("more than 50 aliases"));
  EXPECT_THAT(errors_of("a: *nobody\n"), HasSubstr("not valid YAML"));
  std::string bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n";
  for (char c = 'b'; c < 'g'; ++c) {
    bomb += str(c, ": &", c, " [");
    for (int i = 0; i < 9; ++i) bomb += str(i > 0 ? "," : "", "*", static_cast<char>(c - 1));
    bomb += "]\n";
  }
  EXPECT_THAT(errors_of(bomb), HasSubstr("more than 20000 nodes, counting the nodes of every alias"));
}

TEST(YamlTree, RefusesBinaryFiles) {
  EXPECT_EQ(errors_of(std::string("a: b\0c\n", 7)), "a.yaml:1:5: a NUL byte: this is not a text file");
  EXPECT_EQ(errors_of("a: b\nc: \x01\n"), "a.yaml:2:4: a control character (0x01)");
  EXPECT_EQ(errors_of("a: \xff\xfe\n"), "a.yaml:1:4: not UTF-8");
  EXPECT_EQ(errors_of("a: \xc3"), "a.yaml:1:4: not UTF-8");
  EXPECT_EQ(errors_of("\x7f"
                      "ELF\x02\x01\x01"),
            "a.yaml:1:1: a control character (0x7f)");
  EXPECT_EQ(errors_of("\xef\xbb\xbf"
                      "a: gr\xc3\xbc\xc3\x9f\n"),
            "");
  EXPECT_EQ(errors_of(""), "a.yaml:1:1: the file is empty");
  EXPECT_EQ(errors_of("# only a comment\n"), "a.yaml:1:1: the file is empty");
  EXPECT_EQ(errors_of("---\n"), "a.yaml:1:1: the file is empty");
}

TEST(YamlTree, ReportsInvalidYaml) {
  EXPECT_EQ(errors_of("a: \"b\n"), "a.yaml:1:4: the quote is not closed");
  EXPECT_EQ(errors_of("a: b: c\n"),
            "a.yaml:1:5: not valid YAML: illegal map value; a text with `: ` in it must be quoted");
  EXPECT_THAT(errors_of("a: [1, 2\nb: 3\n"), HasSubstr("within {} and [] an expression with a comma"));
  EXPECT_THAT(errors_of("a: f({x})}\nb: {c: f({x})}\n"), HasSubstr("a.yaml:2"));
  EXPECT_THAT(errors_of("\ta: 1\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(errors_of("a:\n  - 1\n b: 2\n"), HasSubstr("a.yaml:3"));
}

// Each of these texts must give an error quickly, without a crash.
TEST(YamlTree, SurvivesHostileTexts) {
  const auto start = std::chrono::steady_clock::now();
  const std::string deep_blocks = [] {
    std::string out;
    for (int i = 0; i < 1000; ++i) out += str(std::string(static_cast<std::size_t>(i), ' '), "a:\n");
    return out;
  }();
  EXPECT_THAT(errors_of(repeated("[", 1000000)), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(errors_of(repeated("{a: ", 200000)), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(errors_of(repeated("- ", 500000)), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(errors_of(repeated("[\n ", 300000)), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(errors_of(deep_blocks), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(errors_of(repeated("? ", 500000)), HasSubstr("a.yaml:1:"));
  EXPECT_THAT(errors_of(std::string(1048577, 'a')),
              HasSubstr("the file has 1048577 bytes; at most 1048576 are allowed"));
  EXPECT_THAT(errors_of(repeated("a\n", 20) + repeated(": x\n", 100000)), HasSubstr("a.yaml:"));
  EXPECT_THAT(errors_of(str("\"", std::string(1000000, 'a'))), HasSubstr("a.yaml:1:"));
  EXPECT_THAT(errors_of(str("[", repeated("1,", 500000), "]")), HasSubstr("more than 20000 nodes"));
  EXPECT_THAT(errors_of(repeated("&a ", 300000)), HasSubstr("a.yaml:1:"));
  EXPECT_THAT(errors_of(repeated("{[", 400000)), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(errors_of(repeated("--- \n", 200000)), HasSubstr("a.yaml:"));
  EXPECT_THAT(errors_of(repeated("%YAML 1.2\n", 1000)), HasSubstr("a.yaml:"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

// Damages a valid text in many ways. No result may be a crash or a hang.
TEST(YamlTree, SurvivesDamagedTexts) {
  const std::string valid =
      "scenario: t/one\nsummary: 'a ''b'\nranks: {world_size: [2, 4]}\nsteps:\n  - seed: &x 0\n  - let: {a: \"[1, "
      "2]\"}\n"
      "  - model: >-\n      Linear(2,\n      2)\n    as: m\n  - seed: *x\n";
  ASSERT_EQ(errors_of(valid), "");
  std::uint32_t state = 12345;  // the seed; a failure shows the damaged text
  const auto next = [&](std::uint32_t bound) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % bound;
  };
  constexpr std::string_view specials = "[]{}:,'\"\n \t&*!|>-?%@`#~";
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = valid;
    for (std::uint32_t edits = 1 + next(4); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = next(static_cast<std::uint32_t>(text.size()));
      switch (next(4)) {
        case 0:
          text.erase(at, 1 + next(5));
          break;
        case 1:
          text.insert(at, 1, specials[next(static_cast<std::uint32_t>(specials.size()))]);
          break;
        case 2:
          text[at] = static_cast<char>(next(256));
          break;
        default:
          text.resize(at + 1);
      }
    }
    SCOPED_TRACE(text);
    refused += errors_of(text).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace lockstep::scenario
