// A rank for the tests of this folder, and helpers around it.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {

inline constexpr Device cpu{Kind::cpu, 0};
inline constexpr Device sim{Kind::sim, 0};

struct OneRank {
  RankContext context{0, 1};
  RankScope scope{context};
};

// An access to all bytes of a block.
inline Access full_access(const MemoryPtr& memory, Mode mode) { return {memory.get(), 0, memory->bytes(), mode}; }

inline double milliseconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// The message of the Error that `f` throws.
inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace lockstep::device
