// One entry an operation, from which come its checks and its timing: how it is called, on what inputs, what a plain
// calculation in float64 gives, which types it takes, how far the results may be off.
//
// The checks themselves are in op_cases_test.cpp: against the reference, gradients against central differences, other
// layouts, offsets and devices bit for bit. `lockstep bench kernels` takes the timing.
//
//   for (const OpCase& op : op_registry()) for (const OpVariant& variant : op.variants) ...
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/ops.hpp"
#include "engine/core/random.hpp"

namespace lockstep::ops {

// Values in float64 in row-major order: what references are written with.
struct Plain {
  Dims sizes;
  std::vector<double> values;

  double at(const Dims& index) const;
  // The element that broadcasting puts at `index` of a larger tensor.
  double broadcast_at(const Dims& index) const;
};
// The tensor whose element at each index is f(index).
Plain build(const Dims& sizes, const std::function<double(const Dims& index)>& f);

struct OpInput {
  Dims sizes;
  double low = -1.5;
  double high = 1.5;                    // drawn between the two, but not within 0.1 of zero
  std::vector<std::int64_t> indices{};  // not empty: an int64 tensor of these, without gradient
};

struct OpVariant {
  std::string name;
  std::vector<OpInput> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::function<Plain(const std::vector<Plain>&)> reference;
};

enum class OpTypes { floating, numbers, all };  // numbers: the integers too; all: bool as well

struct OpCase {
  std::string_view name;
  OpTypes types = OpTypes::floating;
  bool differentiable = true;
  bool any_layout = true;             // takes inputs of any strides
  bool layout_keeps_bits = true;      // else strides may change the last bits (products)
  double tolerance = 1.0;             // times what rounding each result once may cost
  std::vector<OpVariant> variants{};  // the checks
  OpVariant timed{};                  // the timing; its reference is not used
  double flops = 0.0;                 // of the timed variant, where that is what limits it
};

// In the order of operation_names.
const std::vector<OpCase>& op_registry();

// The input on a device, contiguous; the same values for the same generator state. Integers and bool get small numbers.
Tensor make_input(const OpInput& input, DType dtype, device::Device device, Generator& generator);
// Whether the operation takes tensors of that type.
bool takes(const OpCase& op, DType dtype);
// How far a result of that type may be off: relative to the value, and absolute.
struct Tolerance {
  double relative;
  double absolute;
};
Tolerance tolerance_of(const OpCase& op, DType dtype);

struct OpTiming {
  std::string_view name;
  std::string inputs;                                   // sizes, as text
  double median_us = 0.0, low_us = 0.0, high_us = 0.0;  // of one call; low and high: 10th and 90th percentile
  int rounds = 0;
  double gbytes_per_s = 0.0;  // bytes of inputs and result, at the median
  double gflops = 0.0;        // 0 where memory limits
};
// Times each operation, or the one named, in float32, without recording. Each round waits for the stream.
std::vector<OpTiming> time_operations(device::Device device, int rounds, std::string_view only = {});

}  // namespace lockstep::ops
