#include "engine/state/hash.hpp"

#include <charconv>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 sees one in its own header of AVX-512
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
// Compiled here, the hash uses the vector instructions that the build allows. That takes half the time of the library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/core/error.hpp"

namespace lockstep::state {

std::uint64_t hash_of(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

void hash_runs(const std::byte* bytes, const std::vector<TileRun>& runs, std::uint64_t pitch,
               std::vector<std::uint64_t>& hashes) {
  constexpr std::uint64_t cache_line = 64;
  for (const TileRun& run : runs) {
    const std::byte* const begin = bytes + run.begin;
    for (std::uint64_t at = 0; at < run.length; at += cache_line) __builtin_prefetch(begin + pitch + at);
    hashes[run.tile] = XXH3_64bits_withSeed(begin, static_cast<std::size_t>(run.length), hashes[run.tile]);
  }
}

std::string hash_text(std::uint64_t hash) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; hash >>= 4) text[i] = digits[hash & 15];
  return text;
}

std::uint64_t hash_from_text(std::string_view text, const std::string& subject) {
  std::uint64_t hash = 0;
  std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (hash_text(hash) != text)
    throw Error(str(subject, " is `", text, "`, and not 16 hexadecimal digits"), "restore the checkpoint from a copy");
  return hash;
}

}  // namespace lockstep::state
