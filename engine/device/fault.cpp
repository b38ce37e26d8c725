#include "engine/device/fault.hpp"

#include <cstdio>

#include "engine/device/protection.hpp"
#include "engine/device/runtime.hpp"

namespace lockstep::device {

// Allocates nothing: the heap may be locked by this thread.
void describe_fault(const void* address, char* text, std::size_t size) {
  text[0] = '\0';
  const auto* const at = static_cast<const std::byte*>(address);
  if (protected_region_with(at).base == nullptr) return;
  const RankContext* const context = RankContext::current_or_null();
  const int line = context == nullptr ? 0 : context->scenario_line;
  char place[48] = "";
  if (line > 0) std::snprintf(place, sizeof place, ", at line %d of the scenario", line);
  const Memory* const block = context == nullptr ? nullptr : Runtime::current().block_at(at);
  if (block == nullptr) {
    std::snprintf(text, size, "host code touched memory of sim outside a launch%s", place);
    return;
  }
  const std::string_view purpose = name_of(block->purpose());
  char unnamed[48];
  std::snprintf(unnamed, sizeof unnamed, "a block of %zu bytes", block->bytes());
  std::snprintf(text, size, "host code touched byte %zu of %s (%.*s) on sim:%d outside a launch%s",
                static_cast<std::size_t>(at - PointerAccess::data(*block)),
                block->label.empty() ? unnamed : block->label.c_str(), static_cast<int>(purpose.size()), purpose.data(),
                block->device().index, place);
}

}  // namespace lockstep::device
