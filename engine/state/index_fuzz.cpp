// Any text is the index of a checkpoint or is refused. An index is written as files that read back as the same.
//
// The input is the content of an index, a zero byte, and the hashes. The fuzzer cannot guess the hashes of these two,
// so they are computed here. An input that is not JSON goes to the reader as it is.
#include <cstdint>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/state/format.hpp"
#include "engine/state/hash.hpp"

namespace {

lockstep::state::IndexFiles files_of(std::string_view input) {
  using namespace lockstep::state;
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string text(input.substr(0, end)), hashes(input.substr(std::min(end + 1, input.size())));
  nlohmann::json content = nlohmann::json::parse(text, nullptr, false);
  if (!content.is_object()) return {text, hashes};
  content["hashes"] = {{"bytes", hashes.size()}, {"hash", hash_text(hash_of(hashes))}};
  std::string dumped;
  try {
    dumped = content.dump();
  } catch (const nlohmann::json::exception&) {  // not UTF-8
    return {text, hashes};
  }
  const nlohmann::json whole = {{"format", "lockstep checkpoint"},
                                {"version", content.contains("old") ? 1 : format_version},
                                {"hash", hash_text(hash_of(dumped))},
                                {"content", content}};
  return {whole.dump(), hashes};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  state::Index index;
  try {
    index = state::index_from_files(files_of({reinterpret_cast<const char*>(data), size}), "fuzz");
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return 0;
  }
  if (index.version != state::format_version) return 0;
  const state::IndexFiles files = state::index_files(index);
  const state::IndexFiles again = state::index_files(state::index_from_files(files, "again"));
  LOCKSTEP_CHECK(again.text == files.text && again.hashes == files.hashes, "an index reads back as another one");
  return 0;
}
