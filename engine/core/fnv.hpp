// FNV-1a: a 64-bit hash of bytes that is the same on every machine and in every run. For checksums and fingerprints, not
// against adversaries.
//
//   std::uint64_t hash = fnv1a("first");
//   hash = fnv1a("second", hash);   // goes on from the hash of the bytes before
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

inline constexpr std::uint64_t fnv1a_basis = 14695981039346656037ull;
inline constexpr std::uint64_t fnv1a_prime = 1099511628211ull;

constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = fnv1a_basis) {
  for (const char byte : text) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= fnv1a_prime;
  }
  return hash;
}

}  // namespace lockstep
