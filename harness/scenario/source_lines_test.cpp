#include "harness/scenario/source_lines.hpp"

#include <gtest/gtest.h>

namespace lockstep::scenario {
namespace {

using Lines = std::vector<std::string>;

TEST(SourceLines, ContainStepAndIndentedLines) {
  const std::string text =
      "steps:\n  - seed: 1\n  - expect_equal:\n      actual: a\r\n      expected: b\n  - barrier: {}\n";
  EXPECT_EQ(step_lines_of(text, 2), (Lines{"  - seed: 1"}));
  EXPECT_EQ(step_lines_of(text, 3), (Lines{"  - expect_equal:", "      actual: a", "      expected: b"}));
  EXPECT_EQ(step_lines_of(text, 6), (Lines{"  - barrier: {}"}));
}

TEST(SourceLines, AreBoundedOrEmpty) {
  std::string text = "- repeat: 3\n";
  for (int i = 0; i < 100; ++i) text += "  - seed: 1\n";
  EXPECT_EQ(step_lines_of(text, 1).size(), static_cast<std::size_t>(max_source_lines));
  EXPECT_EQ(step_lines_of(text, 1000), Lines());
  EXPECT_EQ(step_lines_of("\n\n", 1), Lines());
}

TEST(SourceLines, ComeFromLibraryOrFile) {
  const std::string root = LOCKSTEP_SOURCE_DIR "/scenarios";
  const Lines first = {"routine: average_gradients"};
  EXPECT_EQ(step_lines(root, {"lib/average_gradients.yaml", 1, 1}), first);
  EXPECT_EQ(step_lines("/nowhere", {root + "/lib/average_gradients.yaml", 1, 1}), first);
  EXPECT_EQ(step_lines(root, {"lib/absent.yaml", 1, 1}), Lines());
  EXPECT_EQ(step_lines(root, {"lib", 1, 1}), Lines());
  EXPECT_EQ(step_lines(root, {"lib/average_gradients.yaml", 0, 0}), Lines());
}

}  // namespace
}  // namespace lockstep::scenario
