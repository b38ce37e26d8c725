#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/kernels/reduce.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"

namespace lockstep::raw {

namespace {

// A mask of the dims.
std::array<bool, max_dims> reduced_dims(const char* name, const Tensor& a, const Dims& dims) {
  std::array<bool, max_dims> reduced = {};
  for (std::int64_t dim : dims) {
    const int at = normalize_dim(dim, a.num_dims(), name);
    if (reduced[static_cast<std::size_t>(at)])
      throw Error(str(name, ": dim ", dim, " is named twice in ", to_text(dims)), "name each dim once");
    reduced[static_cast<std::size_t>(at)] = true;
  }
  return reduced;
}

Tensor reduce(const char* name, const Tensor& a, const std::array<bool, max_dims>& reduced, bool keep_dims,
              bool is_mean) {
  // The kernel expects the remaining dims first, then the reduced dims, each in order.
  Dims out_sizes, sizes, strides;
  int num_reduced = 0;
  std::int64_t count = 1;
  for (const bool is_reduced : {false, true}) {
    for (int dim = 0; dim < a.num_dims(); ++dim) {
      if (reduced[static_cast<std::size_t>(dim)] != is_reduced) continue;
      sizes.push_back(a.sizes()[dim]);
      strides.push_back(a.strides()[dim]);
      if (is_reduced) {
        ++num_reduced;
        count = bounded_product(count, a.sizes()[dim]);
      }
    }
  }
  for (int dim = 0; dim < a.num_dims(); ++dim) {
    const bool is_reduced = reduced[static_cast<std::size_t>(dim)];
    if (!is_reduced || keep_dims) out_sizes.push_back(is_reduced ? 1 : a.sizes()[dim]);
  }
  const Tensor out = empty(out_sizes, is_floating(a.dtype()) ? a.dtype() : DType::int64, a.device());
  const double divisor = is_mean ? static_cast<double>(count) : 1.0;
  run_kernel(
      name,
      [sizes, strides, num_reduced, divisor](kernels::Execution execution, const kernels::View& to,
                                             kernels::View from) {
        from.sizes = sizes;
        from.strides = strides;
        kernels::sum(execution, to, from, num_reduced, divisor);
      },
      out, a);
  return out;
}

constexpr std::array<bool, max_dims> all_dims = {true, true, true, true, true, true, true, true};

}  // namespace

Tensor sum(const Tensor& a) {
  require_defined("sum", a);
  return reduce("sum", a, all_dims, false, false);
}
Tensor sum(const Tensor& a, const Dims& dims, bool keep_dims) {
  require_defined("sum", a);
  return reduce("sum", a, reduced_dims("sum", a, dims), keep_dims, false);
}
Tensor mean(const Tensor& a) {
  require_floating("mean", a);
  return reduce("mean", a, all_dims, false, true);
}
Tensor mean(const Tensor& a, const Dims& dims, bool keep_dims) {
  require_floating("mean", a);
  return reduce("mean", a, reduced_dims("mean", a, dims), keep_dims, true);
}

Tensor sum_to(const Tensor& a, const Dims& sizes) {
  require_defined("sum_to", a);
  if (a.sizes() == sizes) return a;
  const int extra = a.num_dims() - sizes.size();
  std::array<bool, max_dims> reduced = {};
  bool fits = extra >= 0;
  for (int dim = 0; fits && dim < a.num_dims(); ++dim) {
    const std::int64_t wanted = dim < extra ? 1 : sizes[dim - extra];
    fits = wanted == a.sizes()[dim] || wanted == 1;
    reduced[static_cast<std::size_t>(dim)] = dim < extra || (wanted == 1 && a.sizes()[dim] != 1);
  }
  if (!fits)
    throw Error(str("sum_to: ", to_text(a.sizes()), " is not a broadcast of ", to_text(sizes)),
                "give sizes that broadcast to those of the tensor");
  return view(reduce("sum_to", a, reduced, false, false), sizes);
}

Tensor mse_loss(const Tensor& input, const Tensor& target) {
  require_floating("mse_loss", input);
  require_same_device("mse_loss", input, target);
  if (!(input.sizes() == target.sizes()))
    throw Error(str("mse_loss: input ", to_text(input.sizes()), " and target ", to_text(target.sizes()), " differ"),
                "give both the same sizes");
  const DType dtype = promote(input.dtype(), target.dtype());
  const Tensor out = empty(Dims{}, dtype, input.device());
  run_kernel(
      "mse_loss",
      [](kernels::Execution execution, const kernels::View& to, const kernels::View& a, const kernels::View& b) {
        kernels::sum_squared_difference(execution, to, a, b, static_cast<double>(kernels::num_elements(a)));
      },
      out, contiguous(cast(input, dtype)), contiguous(cast(target, dtype)));
  return out;
}

bool all_finite(const Tensor& a) {
  require_floating("all_finite", a);
  if (a.is_meta())
    throw Error(str("all_finite: ", describe(a), " has no values"), "call it on a device that has memory");
  if (a.num_elements() == 0) return true;
  const Tensor out = empty(Dims{}, DType::boolean, a.device());
  run_kernel("all_finite", kernels::all_finite, out, a);
  return item(out) != 0.0;
}

}  // namespace lockstep::raw
