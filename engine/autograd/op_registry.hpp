// The registry of operations: one entry per operation, from which its checks and its timing are generated. An entry
// holds the call, its inputs, a reference calculation in float64, the accepted types and the tolerance.
//
// The checks are in op_cases_test.cpp: comparison with the reference, gradients by central differences, and equal bits
// for other strides, offsets and devices. `lockstep bench kernels` does the timing.
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

// A float64 tensor in row-major order, for references.
struct Plain {
  Dims sizes;
  std::vector<double> values;

  double at(const Dims& index) const;
  // The element at `index` of a larger tensor to which this one is broadcast.
  double broadcast_at(const Dims& index) const;
};
// The tensor whose element at each index is f(index).
Plain build(const Dims& sizes, const std::function<double(const Dims& index)>& f);

struct OpInput {
  Dims sizes;
  double low = -1.5;
  double high = 1.5;                    // values are drawn from low to high, but not within 0.1 of zero
  std::vector<std::int64_t> indices{};  // if not empty: an int64 tensor of these values, without gradient
  bool constant = false;                // the operation refuses to give it a gradient
  bool condition = false;               // a bool tensor, whatever the type of the others
};

struct OpVariant {
  std::string name;
  std::vector<OpInput> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::function<Plain(const std::vector<Plain>&)> reference;
};

enum class OpTypes { floating, numbers, all };  // numbers: floating and integers; all: bool too

struct OpCase {
  std::string_view name;
  OpTypes types = OpTypes::floating;
  bool differentiable = true;
  bool differentiable_if_sharded = true;  // false: some layouts are refused while a gradient is recorded
  bool any_strides = true;                // accepts inputs of any strides
  bool draws_in_memory_order = false;     // the order of dims in memory decides which element gets which number
  bool strides_keep_bits = true;          // false: strides may change the last bits (products)
  double tolerance = 1.0;                 // in units of the error of one rounding per result
  std::vector<OpVariant> variants{};      // for the checks
  OpVariant timed{};                      // for the timing; its reference is not used
  bool any_length = true;                 // the timed variant takes inputs with a longer first dim
  double flops = 0.0;                     // of the timed variant, if arithmetic limits its speed
};

// In the order of operation_names.
const std::vector<OpCase>& op_registry();

// A contiguous input on a device. The values depend on the generator state only; integers and bool get small numbers.
Tensor make_input(const OpInput& input, DType dtype, device::Device device, Generator& generator);
// Marks the floating inputs that have a gradient.
void require_gradients(const OpVariant& variant, const std::vector<Tensor>& inputs);
// Whether the operation accepts the type.
bool takes(const OpCase& op, DType dtype);
// The allowed error of a result of the type: relative to the value plus absolute.
struct Tolerance {
  double relative;
  double absolute;
};
Tolerance tolerance_of(const OpCase& op, DType dtype);

struct OpTiming {
  std::string_view name;
  std::string inputs;                                   // their sizes as text
  double median_us = 0.0, low_us = 0.0, high_us = 0.0;  // per call; low, high: 10th and 90th percentile
  int rounds = 0;
  double gbytes_per_s = 0.0;  // bytes of inputs and result over the median time
  double gflops = 0.0;        // 0 if memory limits the speed
};
struct TimingOptions {
  int rounds = 50;
  std::string_view only{};  // an operation; empty: all
  // The inputs are this many times larger along their first dim if memory limits the speed of the operation, it takes
  // any length and no indices, and they have the sizes of its first input.
  int scale = 1;
};
// Times operations in float32 without recording. Each round waits for the stream.
std::vector<OpTiming> time_operations(device::Device device, const TimingOptions& options);

}  // namespace lockstep::ops
