// Snapshots read back to the host, as the comparison wants them: the end of the way of a value that a check looked at.
// Everything must have ended before (device::synchronize_all).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "harness/run/checks/checks.hpp"

namespace lockstep::run {

struct HostValue {
  std::vector<std::byte> bytes;
  verdict::Operand operand;  // points into `bytes`
};
struct HostPair {
  HostValue actual, expected;
  bool tensors = false;  // at least one side was a tensor
  bool exact = false;    // neither numbers nor tensors: `agree` decides
  bool agree = false;
  std::string message;
};

// A number beside a tensor becomes a tensor full of it.
HostPair to_host(const Snapshot& actual, const Snapshot& expected);
// One value on its own: bytes that are equal exactly when the values are, with kind, type and shape in front.
std::string to_wire(const Snapshot& snapshot);
bool is_zero_or_empty(const Snapshot& snapshot);

double largest_magnitude(const Snapshot& snapshot);
bool has_nan(const verdict::Operand& operand);
bool has_nan(const Snapshot& snapshot);

}  // namespace lockstep::run
