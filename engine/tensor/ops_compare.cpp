// Comparisons, where, extremes along a dim.
#include "engine/core/error.hpp"
#include "engine/kernels/compare.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::raw {

namespace {

using device::Mode;

Tensor broadcast(const Tensor& a, const Dims& sizes) { return a.sizes() == sizes ? a : expand(a, sizes); }

Tensor compare(const char* name, kernels::Comparison comparison, const Tensor& a, const Tensor& b) {
  require_same_device(name, a, b);
  const DType dtype = result_type(a, b);
  const Dims sizes = broadcast_sizes(a.sizes(), b.sizes(), name);
  const Tensor out = empty(sizes, DType::boolean, a.device());
  run_kernel(
      name,
      [comparison](kernels::Execution execution, const kernels::View& to, const kernels::View& x,
                   const kernels::View& y) { kernels::compare(execution, to, x, y, comparison); },
      out, broadcast(cast(a, dtype), sizes), broadcast(cast(b, dtype), sizes));
  return out;
}

// The kernel works on rows along the last dim.
Tensor extremes(const char* name, const Tensor& a, int dim, bool keep_dim, bool largest, bool wants_index) {
  require_defined(name, a);
  const int on = a.num_dims() == 0 ? 0 : normalize_dim(dim, a.num_dims(), name);
  if (a.num_dims() > 0 && a.sizes()[on] == 0)
    throw Error(str(name, ": dim ", on, " of ", describe(a), " has no elements"), "give a dim that has elements");
  // The other dims keep their order.
  Dims order, sizes;
  for (int at = 0; at < a.num_dims(); ++at) {
    if (at != on) order.push_back(at);
    if (at != on || keep_dim) sizes.push_back(at == on ? 1 : a.sizes()[at]);
  }
  if (a.num_dims() > 0) order.push_back(on);
  const Tensor from = contiguous(permute(a, order));
  const Tensor out = empty(sizes, wants_index ? DType::int64 : a.dtype(), a.device());
  const Tensor none;
  run_operands(name, a.device(), a.num_elements(),
               {{wants_index ? none : out, Mode::write}, {wants_index ? out : none, Mode::write}, {from}},
               [largest](kernels::Execution execution, const auto& at) {
                 kernels::extremes(execution, at[0], at[1], at[2], largest);
               });
  return out;
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", kernels::Comparison::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", kernels::Comparison::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", kernels::Comparison::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", kernels::Comparison::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", kernels::Comparison::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", kernels::Comparison::ge, a, b); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  require_same_device("where", a, b);
  require_same_device("where", a, condition);
  if (condition.dtype() != DType::boolean)
    throw Error(str("where: the condition is ", describe(condition)),
                "give bool, for example the result of a comparison");
  const DType dtype = result_type(a, b);
  const Dims sizes = broadcast_sizes(broadcast_sizes(a.sizes(), b.sizes(), "where"), condition.sizes(), "where");
  const Tensor out = empty(sizes, dtype, a.device());
  run_kernel("where", kernels::where, out, broadcast(condition, sizes), broadcast(cast(a, dtype), sizes),
             broadcast(cast(b, dtype), sizes));
  return out;
}

Tensor max(const Tensor& a, int dim, bool keep_dim) { return extremes("max", a, dim, keep_dim, true, false); }
Tensor min(const Tensor& a, int dim, bool keep_dim) { return extremes("min", a, dim, keep_dim, false, false); }
Tensor argmax(const Tensor& a, int dim, bool keep_dim) { return extremes("argmax", a, dim, keep_dim, true, true); }

}  // namespace lockstep::raw
