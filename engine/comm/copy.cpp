// Copies between the ranks' buffers, to one place or to many (reduce.hpp).
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/comm/reduce.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/past_caches.hpp"

namespace lockstep::comm {

namespace {

// Line by line, each read once. Stores that go through the caches ask for their lines well ahead: with many streams of
// stores the processor does not foresee them by itself. Returns the bytes stored in each place.
std::size_t copy_lines_to_all(std::byte* const* to, std::size_t count, const std::byte* from, std::size_t num_lines,
                              bool streams) {
  struct Line {
    std::byte bytes[64];
  };
  const std::size_t bytes = num_lines * 64;
  if (streams && has_past_caches) {
    // Some lines of each place at a time: memory likes them in one piece.
    constexpr std::size_t piece = 4 * 64;
    std::size_t at = 0;
    while (at < bytes) {
      const std::size_t end = at + piece < bytes ? at + piece : bytes;
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t line = at; line < end; line += 64) store_past_caches(to[i] + line, from + line);
      at = end;
    }
    finish_past_caches();
    return at;
  }
  constexpr std::size_t ahead = 512;
  std::size_t at = 0;
  for (; at < bytes; at += 64) {
    Line line;
    std::memcpy(&line, from + at, sizeof line);
    for (std::size_t i = 0; i < count; ++i) {
      __builtin_prefetch(to[i] + at + ahead, 1);
      std::memcpy(to[i] + at, &line, sizeof line);
    }
  }
  return at;
}

}  // namespace

std::size_t copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streams) {
  if (to == from || bytes == 0) return bytes;
  if (defect_armed(Defect::transport_tail_left_out)) [[unlikely]]
    --bytes;
  if (streams && has_past_caches && bytes >= 256) {
    copy_past_caches(to, from, bytes);
    return bytes;
  }
  std::memcpy(to, from, bytes);
  return bytes;
}

std::size_t copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool streams) {
  constexpr std::size_t most = 16;  // places at a time
  constexpr std::size_t least_bytes = 4096;
  if (to.size() > most) {
    const std::size_t first = copy_to_all(to.first(most), from, bytes, streams);
    return std::min(first, copy_to_all(to.subspan(most), from, bytes, streams));
  }
  std::byte* places[most];
  std::size_t count = 0;
  const auto alignment = [](const std::byte* place) { return reinterpret_cast<std::uintptr_t>(place) % 64; };
  bool alike = true;
  for (std::byte* place : to) {
    if (place == from || place == nullptr) continue;
    places[count++] = place;
    alike = alike && alignment(place) == alignment(places[0]);
  }
  if (count == 0 || bytes == 0) return bytes;
  if (!alike || bytes < least_bytes) {
    std::size_t least = bytes;
    for (std::size_t i = 0; i < count; ++i) least = std::min(least, copy(places[i], from, bytes, streams));
    return least;
  }
  const std::size_t head = (64 - alignment(places[0])) % 64;
  const std::size_t num_lines = (bytes - head) / 64, tail = head + num_lines * 64;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(places[i], from, head);
    std::memcpy(places[i] + tail, from + tail, bytes - tail);
    places[i] += head;
  }
  const std::size_t lines = copy_lines_to_all(places, count, from + head, num_lines, streams);
  return head + lines + (bytes - tail);
}

}  // namespace lockstep::comm
