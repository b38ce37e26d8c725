// The order check: two conflicting accesses to overlapping bytes that nothing orders are a defect, whether or not this
// run happened to get them right. Vector clocks over the rank's streams and its host thread; streams are modelled as
// CUDA's are even where they run inline. Freeing a block counts as a write on its home stream.
//
// On by default in `lockstep run`, off in `lockstep bench`. Violations are collected, not thrown: the case's verdict
// reads them at its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::device {

struct OrderViolation {
  std::string message;  // both accesses: launch name, stream, read or write, range, place, and the block's label
  int scenario_line = 0;
  int iteration = -1;
  std::int64_t time_ns = 0;
};

void set_order_check(bool on);
bool order_check_on();
// What was found on the current rank so far, at most 20, in order of finding.
const std::vector<OrderViolation>& order_violations();
// Number of pairs of accesses that were checked, as evidence that the check looked.
std::int64_t num_order_checks();

// Test mode: before each launch what it only writes is filled with 0xFF bytes (not-a-number), and after it what it only
// reads must be unchanged.
void set_poison(bool on);

}  // namespace lockstep::device
