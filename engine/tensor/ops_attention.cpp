// Softmax, dropout, attention.
#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/kernels/activations.hpp"
#include "engine/kernels/normalize.hpp"
#include "engine/tensor/host.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_network.hpp"
#include "engine/tensor/ops_shards.hpp"

namespace lockstep::raw {

namespace {

using device::Mode;

DType compute_type(DType dtype) { return size_of(dtype) == 2 ? DType::float32 : dtype; }
Tensor transposed(const Tensor& a) { return lockstep::transpose(a, -2, -1); }

// a x b with the strides of `like`, which has the sizes of the product. If the heads of a row are adjacent in `like`,
// they are adjacent in the product, and the caller can transpose it back without a copy.
Tensor product_with_strides_of(const Tensor& like, const Tensor& a, const Tensor& b) {
  if (like.num_dims() < 4 || !lockstep::transpose(like, -3, -2).is_contiguous()) return matmul(a, b);
  const Tensor out =
      lockstep::transpose(empty(lockstep::transpose(like, -3, -2).sizes(), a.dtype(), a.device()), -3, -2);
  matmul_into(out, a, b);
  return out;
}

// The kernels work on rows along the last dim. A scalar is one row of one element.
int dim_of(const char* name, const Tensor& a, int dim) {
  require_floating(name, a);
  return a.num_dims() == 0 ? 0 : normalize_dim(dim, a.num_dims(), name);
}
Tensor to_last(const Tensor& a, int dim) {
  return contiguous(a.num_dims() < 2 || dim == a.num_dims() - 1 ? a : lockstep::transpose(a, dim, -1));
}
Tensor from_last(const Tensor& rows, int dim) {
  return rows.num_dims() < 2 || dim == rows.num_dims() - 1 ? rows : contiguous(lockstep::transpose(rows, dim, -1));
}

Tensor softmax_of(const char* name, bool logarithm, const Tensor& a, int dim) {
  const int on = dim_of(name, a, dim);
  const Tensor from = to_last(a, on);
  const Tensor out = empty_like(from);
  run_kernel(
      name,
      [logarithm](kernels::Execution execution, const kernels::View& to, const kernels::View& x) {
        kernels::softmax(execution, to, x, logarithm);
      },
      out, from);
  return from_last(out, on);
}
Tensor softmax_backward_of(const char* name, bool logarithm, const Tensor& grad, const Tensor& result, int dim) {
  const int on = dim_of(name, result, dim);
  const Tensor g = to_last(grad, on), y = to_last(result, on);
  const Tensor out = empty_like(y);
  run_kernel(
      name,
      [logarithm](kernels::Execution execution, const kernels::View& to, const kernels::View& from,
                  const kernels::View& of) { kernels::softmax_backward(execution, to, from, of, logarithm); },
      out, g, y);
  return from_last(out, on);
}

void require_probability(const char* name, double p) {
  if (!(p >= 0.0 && p <= 1.0))
    throw Error(str(name, ": a probability of ", p, " to drop an element"), "give a probability from 0 to 1");
}
// Draws one number per element of a full tensor, in memory order, and writes the results of the held elements to
// `kept`.
void draw_shard(const Dims& full_sizes, const std::vector<std::vector<layout::Chunk>>& held, double p, bool* kept) {
  Generator& generator = RankContext::current().generator();
  std::vector<std::vector<bool>> is_held;
  for (int dim = 0; dim < full_sizes.size(); ++dim) {
    std::vector<bool>& at = is_held.emplace_back(static_cast<std::size_t>(full_sizes[dim]), false);
    for (const layout::Chunk& range : held[static_cast<std::size_t>(dim)])
      std::fill_n(at.begin() + range.begin, range.length, true);
  }
  Dims index(full_sizes.size(), 0);
  const std::int64_t count = num_elements(full_sizes);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool keeps = generator.keep(p);
    bool mine = true;
    for (int dim = 0; mine && dim < index.size(); ++dim)
      mine = is_held[static_cast<std::size_t>(dim)][static_cast<std::size_t>(index[dim])];
    if (mine) *kept++ = keeps;
    for (int dim = index.size() - 1; dim >= 0 && ++index[dim] == full_sizes[dim]; --dim) index[dim] = 0;
  }
}

double keep_factor(double p) { return p < 1.0 ? 1.0 / (1.0 - p) : 0.0; }

}  // namespace

Tensor softmax(const Tensor& a, int dim) { return softmax_of("softmax", false, a, dim); }
Tensor log_softmax(const Tensor& a, int dim) { return softmax_of("log_softmax", true, a, dim); }
Tensor softmax_backward(const Tensor& grad, const Tensor& result, int dim) {
  return softmax_backward_of("softmax_backward", false, grad, result, dim);
}
Tensor log_softmax_backward(const Tensor& grad, const Tensor& result, int dim) {
  return softmax_backward_of("log_softmax_backward", true, grad, result, dim);
}

Tensor keep_mask(const Dims& sizes, double p, device::Device device) {
  require_probability("dropout", p);
  const Tensor out = empty(sizes, DType::boolean, device);
  const auto count = static_cast<std::size_t>(out.num_elements());
  if (out.is_meta() || count == 0) return out;
  if (p == 1.0) {  // keeps and draws nothing
    fill_(out, 0.0);
    return out;
  }
  const std::unique_ptr<bool[]> drawn(new bool[count]);
  Generator& generator = RankContext::current().generator();
  for (std::size_t i = 0; i < count; ++i) drawn[i] = generator.keep(p);
  host::write_elements(out, drawn.get());
  return out;
}

Tensor keep_mask_like(const Tensor& like, double p) {
  if (like.is_contiguous()) return keep_mask(like.sizes(), p, like.device());
  const Dims order = dims_in_memory_order(like);
  const Tensor drawn = keep_mask(permute(like, order).sizes(), p, like.device());
  Dims back = order;
  for (int dim = 0; dim < order.size(); ++dim) back[static_cast<int>(order[dim])] = dim;
  return permute(drawn, back);
}

Tensor keep_mask_of_shard(const Dims& full_sizes, const std::vector<std::vector<layout::Chunk>>& held, double p,
                          device::Device device) {
  require_probability("dropout", p);
  Dims sizes;
  for (const std::vector<layout::Chunk>& ranges : held) sizes.push_back(layout::total_length(ranges));
  const Tensor out = empty(sizes, DType::boolean, device);
  if (out.is_meta() || num_elements(full_sizes) == 0) return out;
  if (p == 1.0) {
    fill_(out, 0.0);
    return out;
  }
  const std::unique_ptr<bool[]> kept(new bool[static_cast<std::size_t>(std::max<std::int64_t>(1, out.num_elements()))]);
  draw_shard(full_sizes, held, p, kept.get());
  if (out.num_elements() > 0) host::write_elements(out, kept.get());
  return out;
}

Tensor keep_scaled(const Tensor& a, const Tensor& keep, double factor) {
  require_floating("dropout", a);
  require_same_device("dropout", a, keep);
  const Tensor out = empty_like(a);
  run_kernel(
      "dropout",
      [factor](kernels::Execution execution, const kernels::View& to, const kernels::View& from,
               const kernels::View& kept) { kernels::keep_scaled(execution, to, from, kept, factor); },
      out, a, keep);
  return out;
}

AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double dropout_p,
                          const Tensor* mask, const DrawMask& draw) {
  require_floating("attention", q);
  require_same_device("attention", q, k);
  require_same_device("attention", q, v);
  require_probability("attention", dropout_p);
  bool fits = q.num_dims() >= 2 && k.num_dims() == q.num_dims() && v.num_dims() == q.num_dims() &&
              q.size(-1) == k.size(-1) && k.size(-2) == v.size(-2) && k.dtype() == q.dtype() && v.dtype() == q.dtype();
  for (int dim = 0; fits && dim < q.num_dims() - 2; ++dim)
    fits = q.sizes()[dim] == k.sizes()[dim] && q.sizes()[dim] == v.sizes()[dim];
  if (!fits)
    throw Error(str("attention: q ", describe(q), ", k ", describe(k), ", v ", describe(v)),
                "give (..., queries, d), (..., keys, d) and (..., keys, dv) of one type");
  const DType wide = compute_type(q.dtype());
  AttentionResult out;
  out.probabilities = matmul(cast(q, wide), transposed(cast(k, wide)));
  const Tensor& scores = out.probabilities;
  Tensor allowed;
  if (mask) {
    require_same_device("attention", q, *mask);
    if (mask->dtype() != DType::boolean)
      throw Error(str("attention: the mask is ", describe(*mask)), "give bool, true where a key may be used");
    allowed = contiguous(expand(*mask, scores.sizes()));
  }
  if (dropout_p > 0.0)  // last: a refused call draws nothing
    out.keep = draw ? draw() : keep_mask(scores.sizes(), dropout_p, q.device());
  const Tensor dropped = out.keep.defined() ? empty_like(scores) : Tensor();
  const kernels::AttentionRows rows{1.0 / std::sqrt(static_cast<double>(q.size(-1))), causal, keep_factor(dropout_p)};
  run_operands("attention", q.device(), scores.num_elements(),
               {{scores, Mode::update}, {dropped, Mode::write}, {allowed}, {out.keep}},
               [rows](kernels::Execution execution, const auto& at) {
                 kernels::attention_probabilities(execution, rows, at[0], at[1], at[2], at[3]);
               });
  const Tensor wide_v = cast(v, wide);
  const Tensor& weights = dropped.defined() ? dropped : scores;
  // The result has the strides of the queries if the values have their width.
  out.result =
      cast(q.size(-1) == v.size(-1) ? product_with_strides_of(q, weights, wide_v) : matmul(weights, wide_v), q.dtype());
  return out;
}

AttentionGradients attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& probabilities, const Tensor& keep, bool causal, double dropout_p) {
  const DType wide = probabilities.dtype(), dtype = q.dtype();
  const kernels::AttentionRows rows{1.0 / std::sqrt(static_cast<double>(q.size(-1))), causal, keep_factor(dropout_p)};
  const Tensor g = cast(grad, wide);
  AttentionGradients out;
  const Tensor dropped = keep.defined() ? keep_scaled(probabilities, keep, rows.factor) : probabilities;
  out.v = cast(product_with_strides_of(v, transposed(dropped), g), dtype);
  const Tensor scores = matmul(
      g, transposed(
             cast(v, wide)));  // the gradient of the dropped probabilities; the kernel turns it into that of the scores
  run_operands("attention_backward", q.device(), scores.num_elements(),
               {{scores, Mode::update}, {probabilities}, {keep}}, [rows](kernels::Execution execution, const auto& at) {
                 kernels::attention_backward(execution, rows, at[0], at[1], at[2]);
               });
  out.q = cast(product_with_strides_of(q, scores, cast(k, wide)), dtype);
  out.k = cast(product_with_strides_of(k, transposed(scores), cast(q, wide)), dtype);
  return out;
}

}  // namespace lockstep::raw
