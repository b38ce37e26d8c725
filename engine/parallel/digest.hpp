// What ranks compare before a reduction: a digest of the names of what each puts into it.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::parallel {

// FNV-1a over the text, from `seed`; texts one after the other give another digest than joined.
inline std::uint64_t digest(std::uint64_t seed, std::string_view text) {
  std::uint64_t hash = seed ^ 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return (hash ^ 0xffu) * 1099511628211ull;
}

}  // namespace lockstep::parallel
