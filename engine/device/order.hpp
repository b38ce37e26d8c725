// The order check finds conflicting accesses to overlapping bytes that nothing orders, even if the run happened to
// order them correctly.
//
// It keeps vector clocks of the rank's streams and its host thread. It models streams as CUDA runs them, also where
// they run inline. Freeing a block counts as a write on the stream that allocated it.
//
// `lockstep run` turns the check on, `lockstep bench` turns it off. Violations are collected, not thrown; the case
// reads them at its end for its verdict.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::device {

inline constexpr int max_streams = 16;  // per rank, over all its devices
// Points of all streams of a rank: entry s counts the launches and waits of stream s (order_check.hpp).
using Clocks = std::array<std::uint32_t, max_streams>;

struct OrderViolation {
  std::string message;  // both accesses (launch, stream, read or write, byte range), the block's label, and the place
  int scenario_line = 0;
  int iteration = -1;
  std::int64_t time_ns = 0;  // steady_clock
};

// For the current rank. Accesses made while the check is off count as ordered.
void set_order_check(bool on);
bool order_check_on();
// The violations found on the current rank, at most 20, in the order in which they were found.
const std::vector<OrderViolation>& order_violations();
// The number of compared pairs of accesses, as evidence that the check ran.
std::int64_t num_order_checks();

// Poison mode, for tests: before each launch, memory that it only writes is filled with 0xFF bytes (NaN). After the
// launch, memory that it only reads must be unchanged; otherwise the launch throws Error. A launch that throws before
// it has written a range leaves the earlier bytes there.
void set_poison(bool on);

}  // namespace lockstep::device
