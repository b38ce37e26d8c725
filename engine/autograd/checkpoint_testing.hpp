// For the tests of checkpoint: a fixture on one rank and a layer that counts its calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/autograd/checkpoint.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/device.hpp"

namespace lockstep::checkpoint_testing {

using Tensors = std::vector<Tensor>;

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class Checkpoint : public ::testing::Test {
 protected:
  RankContext context{0, 1};
  RankScope scope{context};
  const device::Device cpu;

  Tensor drawn(const Dims& sizes, bool requires_grad = true) {
    Tensor tensor = randn(sizes, DType::float32, cpu);
    if (requires_grad) set_requires_grad(tensor, true);
    return tensor;
  }
  void seed(std::uint64_t value) { context.generator().seed(value); }
  // Returns the gradient and removes it.
  static std::vector<double> take_grad(const Tensor& leaf) {
    const std::vector<double> values = to_doubles(grad(leaf));
    set_grad(leaf, Tensor());
    return values;
  }
  static std::int64_t activation_bytes() {
    return device::memory_stats().current[static_cast<std::size_t>(device::Purpose::activation)];
  }
};

// dropout(tanh(x w)), counts its calls.
struct Layer {
  Tensor weight;
  int* runs = nullptr;
  double drop = 0.3;
  Tensor operator()(const Tensor& x) const {
    if (runs) ++*runs;
    return ops::dropout(ops::tanh(ops::matmul(x, weight)), drop);
  }
};

}  // namespace lockstep::checkpoint_testing
