// Reads snapshots back to the host for the comparison. All streams must have been synchronized
// (device::synchronize_all).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
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
  bool exact = false;    // neither numbers nor tensors: `agree` is the result
  bool agree = false;
  std::string message;
};

// Throws Error for a number that a tensor of this type cannot hold: a fraction beside integers, or one out of range.
void require_comparable(const Value& number, DType dtype);
// A number that is compared with a tensor becomes a tensor of the same sizes.
HostPair to_host(const Snapshot& actual, const Snapshot& expected);
inline constexpr std::string_view tensor_on_wire = "a tensor ";
// The kind, `:`, and the text; for a tensor `tensor_on_wire`, the dtype and sizes, `:`, and the bytes. Two results are
// equal exactly if the values are.
std::string to_wire(const Snapshot& snapshot);
bool is_zero_or_empty(const Snapshot& snapshot);

// The largest finite absolute value; 0 for none.
double largest_magnitude(const Snapshot& snapshot);
bool has_nan(const verdict::Operand& operand);
bool has_nan(const Snapshot& snapshot);

}  // namespace lockstep::run
