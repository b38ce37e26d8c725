// Any text is an expression or is refused. An expression's text reads back as the same expression.
#include <cstdint>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expression.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace lockstep::scenario;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Place start{"fuzz.yaml", 1, 1};
  std::string printed;
  try {
    parse_text({text, start, {}});
  } catch (const ScenarioError&) {
  }
  try {
    printed = to_text(*parse_expression(text, start));
  } catch (const ScenarioError&) {
    return 0;
  }
  std::string again;
  try {
    again = to_text(*parse_expression(printed, start));
  } catch (const ScenarioError&) {
    // The parentheses that were added may exceed the limits of length and depth.
    LOCKSTEP_CHECK(printed.size() > size, str("`", printed, "` is not read back"));
    return 0;
  }
  LOCKSTEP_CHECK(again == printed, str("`", printed, "` reads back as `", again, "`"));
  return 0;
}
