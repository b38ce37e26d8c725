// The checks of every operation of the registry: agreement with the float64 reference, the derivative by central
// differences, equal bits for other strides, offsets and devices, sizes on meta. Memory is poisoned in all of them,
// which detects a kernel that leaves an element of its result unwritten or writes an input.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/op_registry.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/cuda/stand_in.hpp"
#include "engine/device/order.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {
namespace {

constexpr DType floating_types[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
constexpr DType every_type[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                                DType::int64,   DType::int32,   DType::boolean};
const device::Device cpu = {device::Kind::cpu, 0};
const device::Device sim = {device::Kind::sim, 0};
const device::Device cuda = {device::Kind::cuda, 0};
const device::Device meta = {device::Kind::meta, 0};

// Asks for the stand-in of CUDA where there is no GPU. False: the build lacks it.
bool has_cuda() {
  const auto is_available = [] {
    try {
      device::require_available(device::Kind::cuda);
      return true;
    } catch (const UnsupportedError&) {
      return false;
    }
  };
  if (is_available()) return true;
  ::setenv(device::cuda::stand_in_variable, device::cuda::stand_in_value, 1);
  return is_available();
}

// The memory layout of an input.
struct MemoryLayout {
  enum Kind { contiguous, reversed_dims, gaps } kind = contiguous;
  std::int64_t offset = 0;  // elements before the first one
};

Tensor with_memory_layout(const Tensor& values, MemoryLayout layout) {
  const Dims& sizes = values.sizes();
  Dims strides = contiguous_strides(sizes);
  std::int64_t step = layout.kind == MemoryLayout::gaps ? 2 : 1;
  if (layout.kind == MemoryLayout::gaps)
    for (std::int64_t& stride : strides) stride *= step;
  if (layout.kind == MemoryLayout::reversed_dims) {
    for (int dim = 0; dim < sizes.size(); ++dim) {
      strides[dim] = step;
      step *= std::max<std::int64_t>(1, sizes[dim]);
    }
  }
  const Tensor room = full({layout.offset + 2 * num_elements(sizes) + 1}, 1.0, values.dtype(), values.device());
  const Tensor strided = as_strided(room, sizes, strides, layout.offset);
  raw::copy_(strided, values);
  return strided;
}

struct Result {
  Dims sizes;
  DType dtype;
  std::vector<std::byte> bytes;
  std::vector<std::vector<std::byte>> grads;
};
bool same_bits(const Result& a, const Result& b) {
  return a.sizes == b.sizes && a.dtype == b.dtype && a.bytes == b.bytes && a.grads == b.grads;
}

class OpCases : public testing::TestWithParam<std::size_t> {
 protected:
  OpCases() : scope_(context_) {
    device::set_poison(true);
    device::set_order_check(true);
  }
  ~OpCases() override {
    device::synchronize_all();
    for (const device::OrderViolation& violation : device::order_violations()) ADD_FAILURE() << violation.message;
  }

  const OpCase& op() const { return op_registry()[GetParam()]; }

  std::vector<Tensor> inputs_of(const OpVariant& variant, DType dtype, device::Device device) {
    Generator generator;
    generator.seed(7);
    std::vector<Tensor> inputs;
    for (const OpInput& input : variant.inputs) inputs.push_back(make_input(input, dtype, device, generator));
    return inputs;
  }

  // The result and, for floating types, the gradients of sum(result * weights).
  Result run(const OpVariant& variant, DType dtype, device::Device device, MemoryLayout layout) {
    std::vector<Tensor> inputs = inputs_of(variant, dtype, device);
    for (Tensor& input : inputs) {
      if (!is_floating(input.dtype()) && input.dtype() != dtype) continue;  // an index
      if (layout.kind != MemoryLayout::contiguous || layout.offset > 0) input = with_memory_layout(input, layout);
    }
    const bool with_grads = is_floating(dtype) && op().differentiable;
    if (with_grads) require_gradients(variant, inputs);
    const Tensor result = variant.run(inputs);
    Result out{result.sizes(), result.dtype(), to_bytes(result), {}};
    if (with_grads) {
      backward({result}, {weights_for(result)});
      for (const Tensor& input : inputs)
        if (grad(input).defined()) out.grads.push_back(to_bytes(grad(input)));
    }
    return out;
  }

  // Equal sizes, and values within the tolerance of the operation.
  void expect_near(const Result& plain, const Result& other, DType dtype) const {
    ASSERT_EQ(to_text(plain.sizes), to_text(other.sizes));
    ASSERT_EQ(plain.grads.size(), other.grads.size());
    const Tolerance tolerance = tolerance_of(op(), dtype);
    dispatch_floating(dtype, [&]<class T>() {
      const auto near = [&](const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) {
          T x, y;
          std::memcpy(&x, a.data() + i * sizeof(T), sizeof(T));
          std::memcpy(&y, b.data() + i * sizeof(T), sizeof(T));
          const double wanted = static_cast<double>(static_cast<ComputeType<T>>(x));
          ASSERT_NEAR(static_cast<double>(static_cast<ComputeType<T>>(y)), wanted,
                      2.0 * (tolerance.absolute + tolerance.relative * std::fabs(wanted)));
        }
      };
      near(plain.bytes, other.bytes);
      for (std::size_t k = 0; k < plain.grads.size(); ++k) near(plain.grads[k], other.grads[k]);
    });
  }

  static Tensor weights_for(const Tensor& result) {
    std::vector<double> weights(static_cast<std::size_t>(result.num_elements()));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.5 + 0.25 * static_cast<double>(i % 5);
    return from_values(weights, result.sizes(), result.dtype(), result.device());
  }

  RankContext context_{0, 1};
  RankScope scope_;
};

TEST_P(OpCases, AgreesWithReference) {
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : every_type) {
      if (!takes(op(), dtype)) continue;
      SCOPED_TRACE(str(variant.name, ", ", name_of(dtype)));
      const std::vector<Tensor> inputs = inputs_of(variant, dtype, cpu);
      std::vector<Plain> plains;
      for (const Tensor& input : inputs) plains.push_back({input.sizes(), to_doubles(input)});
      const Plain expected = variant.reference(plains);
      const Tensor result = variant.run(inputs);
      ASSERT_EQ(to_text(result.sizes()), to_text(expected.sizes));
      const std::vector<double> values = to_doubles(result);
      ASSERT_EQ(values.size(), expected.values.size());
      // A result of another type is rounded to the coarser of the two types.
      Tolerance tolerance = tolerance_of(op(), result.dtype());
      if (is_floating(dtype) && is_floating(result.dtype()))
        tolerance.relative = std::max(tolerance.relative, tolerance_of(op(), dtype).relative);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double wanted =
            result.dtype() == DType::boolean ? (expected.values[i] != 0.0 ? 1.0 : 0.0) : expected.values[i];
        ASSERT_NEAR(values[i], wanted, tolerance.absolute + tolerance.relative * std::fabs(wanted)) << "element " << i;
      }
    }
  }
}

TEST_P(OpCases, RefusesOtherTypes) {
  for (const DType dtype : every_type) {
    if (takes(op(), dtype)) continue;
    SCOPED_TRACE(name_of(dtype));
    const std::vector<Tensor> inputs = inputs_of(op().variants[0], dtype, cpu);
    try {
      op().variants[0].run(inputs);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_FALSE(error.remedy().empty()) << error.what();
      EXPECT_THAT(error.message(), testing::HasSubstr(name_of(dtype) == "bool" ? "bool" : "int"));
    }
  }
}

TEST_P(OpCases, DerivativeAgreesWithCentralDifferences) {
  for (const OpVariant& variant : op().variants) {
    SCOPED_TRACE(variant.name);
    std::vector<Tensor> inputs = inputs_of(variant, DType::float64, cpu);
    require_gradients(variant, inputs);
    std::int64_t elements = 0;
    for (const Tensor& input : inputs) elements += input.num_elements();
    const Tensor result = variant.run(inputs);
    ASSERT_EQ(requires_grad(result), op().differentiable);
    if (!op().differentiable) continue;
    const Tensor weights = weights_for(result);
    backward({result}, {weights});
    const NoGrad no_grad;
    const auto loss = [&] {
      const std::vector<double> values = to_doubles(variant.run(inputs));
      const std::vector<double> factors = to_doubles(weights);
      double sum = 0.0;
      for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * factors[i];
      return sum;
    };
    // The differences of a cast to a coarser type are not smooth, so the step must match the resolution of that type.
    const double h = result.dtype() == DType::float64 ? 1e-6 : 0x1p-6;
    const std::int64_t stride =
        std::max<std::int64_t>(1, elements / 60);  // of large inputs only some elements are checked
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (!requires_grad(inputs[k])) continue;
      const Tensor got = grad(inputs[k]);
      const bool is_constant = op().name == "zero_" || op().name == "fill_";
      ASSERT_TRUE(got.defined() || (is_constant && k == 1)) << "input " << k;
      const std::vector<double> values = to_doubles(inputs[k]);
      const std::vector<double> grads = got.defined() ? to_doubles(got) : std::vector<double>(values.size(), 0.0);
      ASSERT_EQ(grads.size(), values.size());
      for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(stride)) {
        std::vector<double> moved = values;
        moved[i] = values[i] + h;
        raw::copy_(inputs[k], from_values(moved, inputs[k].sizes(), DType::float64, cpu));
        const double above = loss();
        moved[i] = values[i] - h;
        raw::copy_(inputs[k], from_values(moved, inputs[k].sizes(), DType::float64, cpu));
        const double below = loss();
        raw::copy_(inputs[k], from_values(values, inputs[k].sizes(), DType::float64, cpu));
        const double slope = (above - below) / (2.0 * h);
        const double tolerance = result.dtype() == DType::float64 ? 1e-7 : 1e-5;
        ASSERT_NEAR(grads[i], slope, tolerance * std::max(1.0, std::fabs(slope))) << "input " << k << ", element " << i;
      }
    }
  }
}

TEST_P(OpCases, DerivativeInOtherTypesAgreesWithFloat64) {
  if (!op().differentiable) return;
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : floating_types) {
      if (dtype == DType::float64) continue;
      SCOPED_TRACE(str(variant.name, ", ", name_of(dtype)));
      // Both types get the same values, which the coarser type can represent.
      std::vector<Tensor> inputs = inputs_of(variant, dtype, cpu), wide;
      for (const Tensor& input : inputs) {
        if (!is_floating(input.dtype())) {
          wide.push_back(input);
          continue;
        }
        wide.push_back(raw::cast(input, DType::float64));
      }
      require_gradients(variant, inputs);
      require_gradients(variant, wide);
      const Tensor result = variant.run(inputs), wide_result = variant.run(wide);
      backward({result}, {weights_for(result)});
      backward({wide_result}, {weights_for(wide_result)});
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        if (!requires_grad(inputs[k])) continue;
        ASSERT_EQ(grad(inputs[k]).defined(), grad(wide[k]).defined());
        if (!grad(inputs[k]).defined()) continue;
        ASSERT_EQ(grad(inputs[k]).dtype(), dtype);
        const std::vector<double> got = to_doubles(grad(inputs[k])), wanted = to_doubles(grad(wide[k]));
        double largest = 0.0;
        for (const double x : wanted) largest = std::max(largest, std::fabs(x));
        const Tolerance tolerance = tolerance_of(op(), dtype);
        for (std::size_t i = 0; i < wanted.size(); ++i)
          ASSERT_NEAR(got[i], wanted[i], tolerance.absolute + 8.0 * tolerance.relative * largest)
              << "input " << k << ", element " << i;
      }
    }
  }
}

TEST_P(OpCases, GivesSameBitsAtAnyOffset) {
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : every_type) {
      if (!takes(op(), dtype)) continue;
      const Result plain = run(variant, dtype, cpu, {});
      for (std::int64_t offset = 0; offset < 18; ++offset) {
        SCOPED_TRACE(str(variant.name, ", ", name_of(dtype), ", offset ", offset));
        ASSERT_TRUE(same_bits(plain, run(variant, dtype, cpu, {MemoryLayout::contiguous, offset})));
      }
    }
  }
}

TEST_P(OpCases, AcceptsAnyStrides) {
  if (!op().any_strides) return;
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : every_type) {
      if (!takes(op(), dtype)) continue;
      const Result plain = run(variant, dtype, cpu, {});
      for (const MemoryLayout layout :
           {MemoryLayout{MemoryLayout::reversed_dims, 3}, MemoryLayout{MemoryLayout::gaps, 1}}) {
        if (op().draws_in_memory_order && layout.kind == MemoryLayout::reversed_dims) continue;
        SCOPED_TRACE(
            str(variant.name, ", ", name_of(dtype), layout.kind == MemoryLayout::gaps ? ", gaps" : ", reversed dims"));
        const Result other = run(variant, dtype, cpu, layout);
        if (op().strides_keep_bits) {
          ASSERT_TRUE(same_bits(plain, other));
          continue;
        }
        expect_near(plain, other, dtype);
      }
    }
  }
}

TEST_P(OpCases, GivesSameBitsOnSim) {
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : every_type) {
      if (!takes(op(), dtype)) continue;
      SCOPED_TRACE(str(variant.name, ", ", name_of(dtype)));
      ASSERT_TRUE(same_bits(run(variant, dtype, cpu, {}), run(variant, dtype, sim, {})));
      if (op().any_strides) {
        ASSERT_TRUE(same_bits(run(variant, dtype, cpu, {MemoryLayout::reversed_dims, 1}),
                              run(variant, dtype, sim, {MemoryLayout::reversed_dims, 1})));
      }
    }
  }
}

// On a GPU, or on its stand-in where there is none. Products have another order there.
TEST_P(OpCases, GivesSameBitsOnCuda) {
  if (!has_cuda()) GTEST_SKIP() << "this build has no stand-in of CUDA, and this machine no GPU";
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : every_type) {
      if (!takes(op(), dtype)) continue;
      SCOPED_TRACE(str(variant.name, ", ", name_of(dtype)));
      for (const MemoryLayout layout : {MemoryLayout{}, MemoryLayout{MemoryLayout::reversed_dims, 1}}) {
        if (layout.kind != MemoryLayout::contiguous && !op().any_strides) continue;
        const Result on_cpu = run(variant, dtype, cpu, layout), on_cuda = run(variant, dtype, cuda, layout);
        if (op().strides_keep_bits) {
          ASSERT_TRUE(same_bits(on_cpu, on_cuda));
        } else {
          expect_near(on_cpu, on_cuda, dtype);
        }
      }
    }
  }
}

TEST_P(OpCases, GivesSizesOnMeta) {
  for (const OpVariant& variant : op().variants) {
    for (const DType dtype : every_type) {
      if (!takes(op(), dtype)) continue;
      SCOPED_TRACE(str(variant.name, ", ", name_of(dtype)));
      const Tensor real = variant.run(inputs_of(variant, dtype, cpu));
      std::vector<Tensor> inputs = inputs_of(variant, dtype, meta);
      require_gradients(variant, inputs);
      const Tensor result = variant.run(inputs);
      ASSERT_TRUE(result.is_meta());
      ASSERT_EQ(to_text(result.sizes()), to_text(real.sizes()));
      ASSERT_EQ(result.dtype(), real.dtype());
      if (!requires_grad(result)) continue;
      backward({result}, {empty_like(result)});
      for (const Tensor& input : inputs)
        if (grad(input).defined()) {
          ASSERT_EQ(to_text(grad(input).sizes()), to_text(input.sizes()));
        }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, OpCases, testing::Range<std::size_t>(0, std::size(operation_names)),
                         [](const testing::TestParamInfo<std::size_t>& of) {
                           std::string name(operation_names[of.param]);
                           return name.back() == '_' ? name + "in_place" : name;
                         });

TEST(OpRegistry, NamesEveryOperationOfTheHeader) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/engine/autograd/ops.hpp");
  ASSERT_TRUE(file);
  std::stringstream text;
  text << file.rdbuf();
  const std::string header = text.str();
  const std::regex declaration(R"(\n(?:Tensor|void|std::vector<Tensor>) (\w+)\()");
  std::set<std::string> declared;
  for (auto found = std::sregex_iterator(header.begin(), header.end(), declaration); found != std::sregex_iterator();
       ++found)
    declared.insert((*found)[1]);
  const std::set<std::string> named(std::begin(operation_names), std::end(operation_names));
  EXPECT_EQ(declared, named);
  EXPECT_EQ(named.size(), std::size(operation_names)) << "a name is listed twice";
}

TEST(OpRegistry, TimesOperations) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const std::vector<OpTiming> timings = time_operations(cpu, {.rounds = 5, .only = "matmul"});
  ASSERT_EQ(timings.size(), 1u);
  EXPECT_EQ(timings[0].name, "matmul");
  EXPECT_GT(timings[0].low_us, 0.0);
  EXPECT_LE(timings[0].low_us, timings[0].median_us);
  EXPECT_LE(timings[0].median_us, timings[0].high_us);
  EXPECT_GT(timings[0].gflops, 0.0);
  const auto inputs_of = [](std::string_view name) {
    return time_operations(cpu, {.rounds = 1, .only = name, .scale = 3}).at(0).inputs;
  };
  EXPECT_EQ(inputs_of("layer_norm"), "(6144, 512) (512,) (512,)");
  EXPECT_EQ(inputs_of("matmul"), "(512, 512) (512, 512)");
}

}  // namespace
}  // namespace lockstep::ops
