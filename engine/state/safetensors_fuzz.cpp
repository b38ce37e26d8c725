// Any bytes are a .safetensors file or are refused. What was read is written as a file that reads back as the same.
#include <cstdint>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/state/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  RankContext context(0, 1);
  const RankScope scope(context);
  std::string written;
  try {
    written = state::write_safetensors(
        state::read_safetensors({reinterpret_cast<const char*>(data), size}, "fuzz.safetensors", {}));
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return 0;
  }
  const std::string again = state::write_safetensors(state::read_safetensors(written, "again.safetensors", {}));
  LOCKSTEP_CHECK(again == written, "a file reads back as another one");
  return 0;
}
