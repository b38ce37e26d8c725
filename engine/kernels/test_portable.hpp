// Comparison of the portable bodies with the host bodies, for the tests of this folder.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// Kokkos' own team size, and teams of threads whose sizes divide no number of lanes evenly.
inline const std::vector<Execution>& portable_executions() {
  static const std::vector<Execution> all = {Space::portable, {Space::portable, 1}, {Space::portable, 3}};
  return all;
}

// Runs launch(execution, out) with a copy of `start` on the host and on each of the portable executions, and compares
// the bytes of `out`. Zeros alone are replaced by other bytes, which no kernel computes. Fails also if the host changes
// nothing.
template <class T, class Launch>
void expect_host_bits(const char* name, std::vector<T> start, const Launch& launch) {
  const std::size_t bytes = start.size() * sizeof(T);
  auto* const first = reinterpret_cast<unsigned char*>(start.data());
  if (std::all_of(first, first + bytes, [](unsigned char byte) { return byte == 0; }))
    std::fill(first, first + bytes, static_cast<unsigned char>(0x41));
  std::vector<T> expected = start;
  launch(Execution(Space::host), expected);
  EXPECT_NE(std::memcmp(expected.data(), start.data(), bytes), 0) << name << " wrote nothing";
  for (const Execution on : portable_executions()) {
    std::vector<T> out = start;
    launch(on, out);
    std::size_t different = 0;
    while (different < out.size() && std::memcmp(&out[different], &expected[different], sizeof(T)) == 0) ++different;
    EXPECT_EQ(different, out.size()) << name << ", teams of " << on.team_size << ": the first different element";
  }
}

// std::vector<bool> has no bytes.
using Bools = std::vector<std::uint8_t>;

}  // namespace lockstep::kernels
