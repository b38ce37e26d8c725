// Any text is a scenario or is refused by an error of the language.
#include <cstdint>

#include "harness/scenario/budget.hpp"
#include "harness/scenario/expand.hpp"
#include "harness/scenario/library.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace lockstep::scenario;
  Budget budget({.memory_bytes = 64 << 20, .seconds = 5});
  const BudgetScope scope(budget);
  try {
    static Library library("/nowhere");
    const auto scenario = library.load_text(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml");
    expand(scenario, {});
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
  } catch (const OutOfTime&) {
  }
  return 0;
}
