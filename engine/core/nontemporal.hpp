// Non-temporal stores, which bypass the caches. They suit large buffers that are not read again soon: a cache line that
// is overwritten completely is not read from memory first. On processors without such stores these are ordinary stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {

#if defined(__x86_64__)
inline constexpr bool has_nontemporal_stores = true;
#else
inline constexpr bool has_nontemporal_stores = false;
#endif

// Stores 64 bytes; `to` is aligned to 64. The source is loaded normally: a non-temporal prefetch of it halves the speed
// when a peer has just written the source and the shared cache still holds it.
inline void store_nontemporal(std::byte* to, const std::byte* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX__)
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
#elif defined(__x86_64__)
  for (int i = 0; i < 4; ++i)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
#else
  std::memcpy(to, from, 64);
#endif
}

// Orders the non-temporal stores before all later stores, such as the one that marks a chunk as done.
inline void fence_nontemporal_stores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Copies any number of bytes at any alignment, and orders the stores before later ones.
inline void copy_nontemporal(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
  if (head >= bytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  const std::size_t lines = bytes / 64;
  for (std::size_t line = 0; line < lines; ++line, to += 64, from += 64) store_nontemporal(to, from);
  std::memcpy(to, from, bytes % 64);
  fence_nontemporal_stores();
}

}  // namespace lockstep
