#include "engine/state/hash.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

#include <xxhash.h>

#include "engine/core/error.hpp"

namespace lockstep::state {

std::uint64_t hash_of(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

std::uint64_t hash_block_of(std::uint64_t chunk_bytes) {
  constexpr std::uint64_t smallest = 512, largest = 256 << 10;
  return std::clamp(std::bit_ceil(chunk_bytes / 64), smallest, largest);
}

std::string hash_text(std::uint64_t hash) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; hash >>= 4) text[i] = digits[hash & 15];
  return text;
}

std::uint64_t hash_from_text(std::string_view text, const std::string& subject) {
  std::uint64_t hash = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || problem != std::errc() || end != text.data() + text.size() || hash_text(hash) != text)
    throw Error(str(subject, " is `", text, "`, and not 16 hexadecimal digits"), "restore the checkpoint from a copy");
  return hash;
}

}  // namespace lockstep::state
