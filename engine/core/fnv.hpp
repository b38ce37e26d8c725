// FNV-1a, a 64-bit hash of bytes, for checksums and for digests that ranks compare. Not for untrusted input.
//
//   std::uint64_t digest = fnv1a_append(1, "block.0");   // a list of names: one call per name
//   digest = fnv1a_append(digest, "weight");
//
// After Fowler, Noll and Vo (RFC 9923).
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

inline constexpr std::uint64_t fnv1a_basis = 0xcbf29ce484222325u;
inline constexpr std::uint64_t fnv1a_prime = 0x100000001b3u;

// The hash of `text`. A hash given as `hash` is continued: fnv1a("b", fnv1a("a")) == fnv1a("ab").
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = fnv1a_basis) {
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * fnv1a_prime;
  return hash;
}

// The digest of a list of texts, extended by one text. A separator ends each text, so that the lists {"ab", "c"} and
// {"a", "bc"} have different digests.
constexpr std::uint64_t fnv1a_append(std::uint64_t digest, std::string_view text) {
  return fnv1a("\xff", fnv1a(text, digest ^ fnv1a_basis));
}

}  // namespace lockstep
