// Copies between the ranks' buffers, to one destination or to many (reduce.hpp).
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/comm/reduce.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/nontemporal.hpp"

namespace lockstep::comm {

namespace {

std::size_t bytes_to_copy(std::size_t bytes) {
  if (defect_armed(Defect::transport_tail_left_out)) [[unlikely]]
    return bytes - 1;
  return bytes;
}

// Copies whole cache lines to all destinations and reads each line once. Returns the bytes stored per destination.
std::size_t copy_lines_to_all(std::byte* const* to, std::size_t count, const std::byte* from, std::size_t num_lines,
                              bool nontemporal) {
  struct Line {
    std::byte bytes[64];
  };
  const std::size_t bytes = num_lines * 64;
  if (nontemporal && has_nontemporal_stores) {
    // Several consecutive lines per destination: memory is faster when writes are contiguous.
    constexpr std::size_t piece = 4 * 64;
    std::size_t at = 0;
    while (at < bytes) {
      const std::size_t end = at + piece < bytes ? at + piece : bytes;
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t line = at; line < end; line += 64) store_nontemporal(to[i] + line, from + line);
      at = end;
    }
    fence_nontemporal_stores();
    return at;
  }
  // The hardware does not prefetch this many streams of stores, so the loop prefetches them itself.
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

std::size_t copy(std::byte* to, const std::byte* from, std::size_t bytes, bool nontemporal) {
  if (to == from || bytes == 0) return bytes;
  bytes = bytes_to_copy(bytes);
  if (nontemporal && has_nontemporal_stores && bytes >= 256) {
    copy_nontemporal(to, from, bytes);
    return bytes;
  }
  std::memcpy(to, from, bytes);
  return bytes;
}

std::size_t copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool nontemporal) {
  constexpr std::size_t max_at_a_time = 16;
  constexpr std::size_t min_bytes_by_lines = 4096;
  if (to.size() > max_at_a_time) {
    const std::size_t first = copy_to_all(to.first(max_at_a_time), from, bytes, nontemporal);
    return std::min(first, copy_to_all(to.subspan(max_at_a_time), from, bytes, nontemporal));
  }
  std::byte* destinations[max_at_a_time];
  std::size_t count = 0;
  const auto alignment = [](const std::byte* place) { return reinterpret_cast<std::uintptr_t>(place) % 64; };
  bool same_alignment = true;
  for (std::byte* destination : to) {
    if (destination == from || destination == nullptr) continue;
    destinations[count++] = destination;
    same_alignment = same_alignment && alignment(destination) == alignment(destinations[0]);
  }
  if (count == 0 || bytes == 0) return bytes;
  if (!same_alignment || bytes < min_bytes_by_lines) {
    std::size_t least = bytes;
    for (std::size_t i = 0; i < count; ++i) least = std::min(least, copy(destinations[i], from, bytes, nontemporal));
    return least;
  }
  const std::size_t head = (64 - alignment(destinations[0])) % 64;
  const std::size_t num_lines = (bytes - head) / 64, tail = head + num_lines * 64;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(destinations[i], from, head);
    std::memcpy(destinations[i] + tail, from + tail, bytes - tail);
    destinations[i] += head;
  }
  const std::size_t lines = copy_lines_to_all(destinations, count, from + head, num_lines, nontemporal);
  return head + lines + (bytes - tail);
}

}  // namespace lockstep::comm
