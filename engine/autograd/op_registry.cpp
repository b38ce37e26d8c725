#include "engine/autograd/op_registry.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "engine/autograd/op_registry_internal.hpp"
#include "engine/core/checked.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::ops {

namespace {

constexpr OpCase (*entries[])() = {add_case,
                                   sub_case,
                                   rsub_case,
                                   mul_case,
                                   div_case,
                                   rdiv_case,
                                   neg_case,
                                   sqrt_case,
                                   rsqrt_case,
                                   exp_case,
                                   log_case,
                                   abs_case,
                                   relu_case,
                                   pow_case,
                                   matmul_case,
                                   linear_case,
                                   sum_case,
                                   mean_case,
                                   mse_loss_case,
                                   index_select_case,
                                   gelu_case,
                                   tanh_case,
                                   sigmoid_case,
                                   embedding_case,
                                   layer_norm_case,
                                   rms_norm_case,
                                   batch_norm_case,
                                   conv2d_case,
                                   eq_case,
                                   ne_case,
                                   lt_case,
                                   le_case,
                                   gt_case,
                                   ge_case,
                                   where_case,
                                   max_case,
                                   min_case,
                                   argmax_case,
                                   softmax_case,
                                   log_softmax_case,
                                   cross_entropy_case,
                                   dropout_case,
                                   attention_case,
                                   view_case,
                                   reshape_case,
                                   flatten_case,
                                   transpose_case,
                                   permute_case,
                                   slice_case,
                                   select_case,
                                   expand_case,
                                   squeeze_case,
                                   unsqueeze_case,
                                   split_case,
                                   chunk_case,
                                   cat_case,
                                   stack_case,
                                   cast_case,
                                   clone_case,
                                   contiguous_case,
                                   to_device_case,
                                   detach_case,
                                   add_in_place_case,
                                   sub_in_place_case,
                                   mul_in_place_case,
                                   div_in_place_case,
                                   relu_in_place_case,
                                   copy_in_place_case,
                                   zero_in_place_case,
                                   fill_in_place_case};
static_assert(std::size(entries) == std::size(operation_names), "each operation needs one entry");

std::int64_t offset_of(const Dims& sizes, const Dims& index) {
  std::int64_t offset = 0;
  for (int dim = 0; dim < sizes.size(); ++dim) offset = bounded_product(offset, sizes[dim]) + index[dim];
  return offset;
}

}  // namespace

const std::vector<OpCase>& op_registry() {
  static const std::vector<OpCase> registry = [] {
    std::vector<OpCase> cases;
    for (const auto entry : entries) cases.push_back(entry());
    for (std::size_t i = 0; i < cases.size(); ++i)
      LOCKSTEP_CHECK(cases[i].name == operation_names[i], "entry ", cases[i].name, " in place of ", operation_names[i]);
    return cases;
  }();
  return registry;
}

double Plain::at(const Dims& index) const { return values[static_cast<std::size_t>(offset_of(sizes, index))]; }

double Plain::broadcast_at(const Dims& index) const {
  Dims own(sizes.size(), 0);
  for (int dim = 0; dim < sizes.size(); ++dim)
    own[dim] = sizes[dim] == 1 ? 0 : index[dim + index.size() - sizes.size()];
  return at(own);
}

Plain build(const Dims& sizes, const std::function<double(const Dims&)>& f) {
  Plain out{sizes, {}};
  const std::int64_t count = num_elements(sizes);
  out.values.reserve(static_cast<std::size_t>(count));
  Dims index(sizes.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    out.values.push_back(f(index));
    for (int dim = sizes.size() - 1; dim >= 0 && ++index[dim] == sizes[dim]; --dim) index[dim] = 0;
  }
  return out;
}

Plain product(const Plain& a, const Plain& b) {
  return build(Dims{a.sizes[0], b.sizes[1]}, [&](const Dims& at) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < a.sizes[1]; ++k) sum += a.at({at[0], k}) * b.at({k, at[1]});
    return sum;
  });
}

Plain total(const Plain& a, const Dims& dims) {
  const auto is_summed = [&](int dim) { return std::find(dims.begin(), dims.end(), dim) != dims.end(); };
  Dims kept, summed;
  for (int dim = 0; dim < a.sizes.size(); ++dim) (is_summed(dim) ? summed : kept).push_back(a.sizes[dim]);
  return build(kept, [&](const Dims& at) {
    const Plain terms = build(summed, [&](const Dims& within) {
      Dims index;
      int next_kept = 0, next_summed = 0;
      for (int dim = 0; dim < a.sizes.size(); ++dim)
        index.push_back(is_summed(dim) ? within[next_summed++] : at[next_kept++]);
      return a.at(index);
    });
    double sum = 0.0;
    for (const double term : terms.values) sum += term;
    return sum;
  });
}

Plain swapped(const Plain& a, int dim0, int dim1) {
  Dims sizes = a.sizes;
  std::swap(sizes[dim0], sizes[dim1]);
  return build(sizes, [&](Dims at) {
    std::swap(at[dim0], at[dim1]);
    return a.at(at);
  });
}

Tensor beside(const Tensor& operand, const Tensor& constant) {
  if (!operand.is_sharded()) return constant;
  const DeviceMesh mesh(operand.layout()->mesh);
  return lockstep::distribute(constant, mesh, Placements(static_cast<std::size_t>(mesh.num_axes())));
}

Tensor make_input(const OpInput& input, DType dtype, device::Device device, Generator& generator) {
  if (!input.indices.empty()) return from_values(input.indices, input.sizes, DType::int64, device);
  if (input.condition) dtype = DType::boolean;
  std::vector<double> values(static_cast<std::size_t>(num_elements(input.sizes)));
  for (double& value : values) {
    value = input.low + generator.uniform64() * (input.high - input.low);
    if (std::fabs(value) < 0.1) value = value < 0.0 || input.high <= 0.0 ? -0.1 : 0.1;
    if (!is_floating(dtype)) value = std::nearbyint(value * 3.0);
    if (dtype == DType::boolean) value = value > 0.0 ? 1.0 : 0.0;
  }
  return from_values(values, input.sizes, dtype, device);
}

void require_gradients(const OpVariant& variant, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_floating(inputs[i].dtype()) && !variant.inputs[i].constant) set_requires_grad(inputs[i], true);
}

bool takes(const OpCase& op, DType dtype) {
  if (is_floating(dtype)) return true;
  return op.types == OpTypes::all || (op.types == OpTypes::numbers && dtype != DType::boolean);
}

Tolerance tolerance_of(const OpCase& op, DType dtype) {
  double unit = 0.0;
  switch (dtype) {
    case DType::float64:
      unit = 0x1p-50;
      break;
    case DType::float32:
      unit = 0x1p-21;
      break;
    case DType::float16:
      unit = 0x1.01p-11;  // half an ulp, plus the error of the float32 computation
      break;
    case DType::bfloat16:
      unit = 0x1.01p-8;
      break;
    default:
      return {0.0, 0.0};
  }
  return {unit * op.tolerance, dtype == DType::float64 ? 1e-13 * op.tolerance : 1e-6 * op.tolerance};
}

namespace {

// `scale` copies of the tensor, one behind the other along its first dim.
Tensor repeated(const Tensor& a, int scale) {
  Dims one = a.sizes(), all = a.sizes();
  one.insert(0, 1);
  all.insert(0, scale);
  Dims joined = a.sizes();
  joined[0] *= scale;
  return ops::reshape(ops::contiguous(ops::expand(ops::reshape(a, one), all)), joined);
}

}  // namespace

std::vector<OpTiming> time_operations(device::Device device, const TimingOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::vector<OpTiming> timings;
  const NoGrad no_grad;
  device::Stream& stream = device::current_stream(device);
  for (const OpCase& op : op_registry()) {
    if (!options.only.empty() && op.name != options.only) continue;
    Generator generator;
    generator.seed(1);
    OpTiming& timing = timings.emplace_back();
    timing.name = op.name;
    timing.rounds = options.rounds;
    const auto has_indices = [](const OpInput& input) { return !input.indices.empty(); };
    const bool can_grow = options.scale > 1 && op.any_length && op.flops == 0.0 &&
                          std::none_of(op.timed.inputs.begin(), op.timed.inputs.end(), has_indices);
    Inputs inputs;
    double bytes = 0.0;
    for (const OpInput& input : op.timed.inputs) {
      const Tensor made = make_input(input, DType::float32, device, generator);
      const bool grows = can_grow && !made.sizes().empty() && input.sizes == op.timed.inputs.front().sizes;
      inputs.push_back(grows ? repeated(made, options.scale) : made);
      bytes += static_cast<double>(inputs.back().num_bytes());
      timing.inputs += str(timing.inputs.empty() ? "" : " ", to_text(inputs.back().sizes()));
    }
    Tensor result = op.timed.run(inputs);  // warms up memory and caches
    bytes += static_cast<double>(result.num_bytes());
    // A round repeats short operations until the resolution of the clock, and the wait for a GPU, are negligible.
    const double least_us = device.kind == device::Kind::cuda ? 2000.0 : 50.0;
    int repeats = 1;
    std::vector<double> times;
    for (int round = 0; round < options.rounds + 1; ++round) {
      stream.synchronize();
      const auto begin = Clock::now();
      for (int i = 0; i < repeats; ++i) result = op.timed.run(inputs);
      stream.synchronize();
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      if (round == 0)
        repeats = static_cast<int>(std::clamp(least_us / std::max(us, 0.01), 1.0, 1000.0));
      else
        times.push_back(us / repeats);
    }
    std::sort(times.begin(), times.end());
    const auto percentile = [&](double fraction) {
      return times[static_cast<std::size_t>(fraction * static_cast<double>(times.size() - 1))];
    };
    timing.low_us = percentile(0.1);
    timing.median_us = percentile(0.5);
    timing.high_us = percentile(0.9);
    timing.gbytes_per_s = bytes / (timing.median_us * 1e3);
    timing.gflops = op.flops / (timing.median_us * 1e3);
  }
  return timings;
}

}  // namespace lockstep::ops
