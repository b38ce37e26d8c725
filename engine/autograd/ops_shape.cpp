#include <algorithm>

#include "engine/autograd/ops_gradients.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"

namespace lockstep::ops {

namespace {

// The derivative of an operation that keeps all elements in order.
Gradients back_to_sizes(const Backward& at) { return {raw::reshape(at.grad(), at.sizes(0))}; }

// The derivative of an operation that selects elements: zeros, with the gradient at the selected elements.
template <class Select>
Gradients into_zeros(const Backward& at, Select select) {
  const Tensor grad = zeros(at.sizes(0), at.dtype(0), at.device(0));
  raw::copy_(select(grad), at.grad());
  return {grad};
}

// reshape and flatten of a local shard. `copies`: also where these elements can be viewed.
Tensor reshaped(const char* name, const Tensor& a, const Dims& sizes, bool copies) {
  return record(name, copies ? lockstep::view(raw::clone(a), sizes) : raw::reshape(a, sizes), {a}, {}, back_to_sizes);
}

bool has_sharded(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return is_sharded(tensor); });
}

}  // namespace

Tensor view(const Tensor& a, const Dims& sizes) {
  if (is_sharded(a)) [[unlikely]]
    return view_on_sharded("view", a, sizes, false,
                           [](const Tensor& x, const Dims& local, bool) { return ops::view(x, local); });
  return record("view", lockstep::view(a, sizes), {a}, {}, back_to_sizes);
}
Tensor reshape(const Tensor& a, const Dims& sizes) {
  if (is_sharded(a)) [[unlikely]]
    return view_on_sharded("reshape", a, sizes, true, [](const Tensor& x, const Dims& local, bool copies) {
      return reshaped("reshape", x, local, copies);
    });
  return record("reshape", raw::reshape(a, sizes), {a}, {}, back_to_sizes);
}

Tensor flatten(const Tensor& a, int first_dim, int last_dim) {
  const int first = normalize_dim(first_dim, a.num_dims(), "flatten");
  const int last = normalize_dim(last_dim, a.num_dims(), "flatten");
  if (first > last)
    throw Error(str("flatten: dim ", first_dim, " comes after dim ", last_dim, " of ", to_text(a.sizes())),
                "give the smaller dim first");
  const Dims& from = global_sizes(a);
  Dims sizes;
  for (int dim = 0; dim < first; ++dim) sizes.push_back(from[dim]);
  std::int64_t merged = 1;
  for (int dim = first; dim <= last && dim < a.num_dims(); ++dim) merged = bounded_product(merged, from[dim]);
  sizes.push_back(merged);
  for (int dim = last + 1; dim < a.num_dims(); ++dim) sizes.push_back(from[dim]);
  if (is_sharded(a)) [[unlikely]]
    return view_on_sharded("flatten", a, sizes, true, [](const Tensor& x, const Dims& local, bool copies) {
      return reshaped("flatten", x, local, copies);
    });
  return record("flatten", raw::reshape(a, sizes), {a}, {}, back_to_sizes);
}

Tensor transpose(const Tensor& a, int dim0, int dim1) {
  if (is_sharded(a)) [[unlikely]] {
    Dims order = all_dims_of(a);
    std::swap(order[normalize_dim(dim0, a.num_dims(), "transpose")],
              order[normalize_dim(dim1, a.num_dims(), "transpose")]);
    return ops::permute(a, order);
  }
  return record("transpose", lockstep::transpose(a, dim0, dim1), {a}, {},
                [dim0, dim1](const Backward& at) -> Gradients { return {lockstep::transpose(at.grad(), dim0, dim1)}; });
}

Tensor permute(const Tensor& a, const Dims& order) {
  if (is_sharded(a)) [[unlikely]]
    return by_rule(a, sharding::permute(*a.layout(), order), [&](const Tensor& x) { return ops::permute(x, order); });
  return record("permute", lockstep::permute(a, order), {a}, {}, [order](const Backward& at) -> Gradients {
    Dims back(order.size(), 0);
    for (int dim = 0; dim < order.size(); ++dim) back[normalize_dim(order[dim], order.size(), "permute")] = dim;
    return {lockstep::permute(at.grad(), back)};
  });
}

Tensor slice(const Tensor& a, int dim, std::int64_t begin, std::int64_t end) {
  if (is_sharded(a)) [[unlikely]]
    return slice_on_sharded(a, dim, begin, end);
  return record("slice", lockstep::slice(a, dim, begin, end), {a}, {}, [dim, begin, end](const Backward& at) {
    return into_zeros(at, [&](const Tensor& grad) { return lockstep::slice(grad, dim, begin, end); });
  });
}

Tensor select(const Tensor& a, int dim, std::int64_t index) {
  if (is_sharded(a)) [[unlikely]]
    return select_on_sharded(a, dim, index);
  return record("select", lockstep::select(a, dim, index), {a}, {}, [dim, index](const Backward& at) {
    return into_zeros(at, [&](const Tensor& grad) { return lockstep::select(grad, dim, index); });
  });
}

Tensor expand(const Tensor& a, const Dims& sizes) {
  if (is_sharded(a)) [[unlikely]]
    return expand_on_sharded(a, sizes);
  return record("expand", lockstep::expand(a, sizes), {a}, {},
                [](const Backward& at) -> Gradients { return {raw::sum_to(at.grad(), at.sizes(0))}; });
}

Tensor squeeze(const Tensor& a, int dim) {
  if (is_sharded(a)) [[unlikely]]
    return squeeze_on_sharded(a, dim);
  return record("squeeze", lockstep::squeeze(a, dim), {a}, {}, back_to_sizes);
}
Tensor unsqueeze(const Tensor& a, int dim) {
  if (is_sharded(a)) [[unlikely]]
    return by_rule(a, sharding::unsqueeze(*a.layout(), dim), [=](const Tensor& x) { return ops::unsqueeze(x, dim); });
  return record("unsqueeze", lockstep::unsqueeze(a, dim), {a}, {}, back_to_sizes);
}

std::vector<Tensor> split(const Tensor& a, std::int64_t size, int dim) {
  if (is_sharded(a)) [[unlikely]]
    return split_on_sharded("split", a, size, dim);
  if (a.num_dims() == 0 || size < 1)
    throw Error(str("split: of ", describe(a), " into tensors of size ", size),
                "give a tensor with dims and a size of at least 1");
  const int on = normalize_dim(dim, a.num_dims(), "split");
  std::vector<Tensor> results;
  std::int64_t at = 0;
  do {
    results.push_back(lockstep::slice(a, on, at, at + size));
    at += size;
  } while (at < a.sizes()[on]);
  const std::size_t count = results.size();
  return record_many("split", std::move(results), {a}, {}, [on, count](const Backward& back) -> Gradients {
    std::vector<Tensor> grads;
    for (std::size_t i = 0; i < count; ++i) grads.push_back(back.grad(static_cast<int>(i)));
    return {raw::cat(grads, on)};
  });
}

std::vector<Tensor> chunk(const Tensor& a, int count, int dim) {
  if (a.num_dims() == 0 || count < 1)
    throw Error(str("chunk: of ", describe(a), " into ", count, " tensors"),
                "give a tensor with dims and a count of at least 1");
  const std::int64_t size = global_sizes(a)[normalize_dim(dim, a.num_dims(), "chunk")];
  const std::int64_t each = std::max<std::int64_t>(1, (size + count - 1) / count);
  std::vector<Tensor> parts = is_sharded(a) ? split_on_sharded("chunk", a, each, dim) : split(a, each, dim);
  if (size == 0) parts.resize(static_cast<std::size_t>(count), parts.front());
  return parts;
}

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  if (has_sharded(tensors)) [[unlikely]]
    return join_on_sharded("cat", tensors, dim, false);
  return record("cat", computed("cat", [&] { return raw::cat(tensors, dim); }), tensors, {},
                [dim, count = static_cast<int>(tensors.size())](const Backward& at) {
                  Gradients grads(static_cast<std::size_t>(count));
                  const int on = normalize_dim(dim, at.sizes(0).size(), "cat");
                  std::int64_t begin = 0;
                  for (int i = 0; i < count; ++i) {
                    const std::int64_t end = begin + at.sizes(i)[on];
                    if (at.needs(i))
                      grads[static_cast<std::size_t>(i)] =
                          raw::cast(lockstep::slice(at.grad(), on, begin, end), at.dtype(i));
                    begin = end;
                  }
                  return grads;
                });
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  if (has_sharded(tensors)) [[unlikely]]
    return join_on_sharded("stack", tensors, dim, true);
  if (tensors.empty()) throw Error("stack: no tensors given", "give at least one");
  const int on = normalize_dim(dim, tensors.front().num_dims() + 1, "stack");
  std::vector<Tensor> rows;
  rows.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    if (!(tensor.sizes() == tensors.front().sizes()))
      throw Error(str("stack: ", to_text(tensor.sizes()), " and ", to_text(tensors.front().sizes()), " differ"),
                  "give tensors of the same sizes");
    rows.push_back(lockstep::unsqueeze(tensor, on));
  }
  return record("stack", computed("stack", [&] { return raw::cat(rows, on); }), tensors, {},
                [on, count = tensors.size()](const Backward& at) {
                  Gradients grads(count);
                  for (std::size_t i = 0; i < count; ++i) {
                    const int input = static_cast<int>(i);
                    if (at.needs(input)) grads[i] = raw::cast(lockstep::select(at.grad(), on, input), at.dtype(input));
                  }
                  return grads;
                });
}

Tensor cast(const Tensor& a, DType dtype) {
  if (is_sharded(a) && a.dtype() != dtype) [[unlikely]]
    return on_sharded("cast", a, converts_summands(a.dtype(), dtype) ? Keeps::sums : Keeps::nothing,
                      [=](const Tensor& x) { return cast(x, dtype); });
  if (a.defined() && a.dtype() == dtype) return a;
  const Tensor result = computed("cast", [&] { return raw::cast(a, dtype); });
  if (!is_floating(dtype)) return result;
  return record("cast", result, {a}, {},
                [](const Backward& at) -> Gradients { return {raw::cast(at.grad(), at.dtype(0))}; });
}

Tensor clone(const Tensor& a) {
  if (is_sharded(a)) [[unlikely]]
    return on_sharded("clone", a, Keeps::all, [](const Tensor& x) { return clone(x); });
  return record("clone", computed("clone", [&] { return raw::clone(a); }), {a}, {},
                [](const Backward& at) -> Gradients { return {at.grad()}; });
}
Tensor contiguous(const Tensor& a) {
  const bool is_in_order = is_sharded(a) ? is_contiguous_on_sharded(a) : a.is_contiguous();
  return is_in_order ? a : clone(a);
}

Tensor to_device(const Tensor& a, device::Device device) {
  if (is_sharded(a) && !(a.device() == device)) [[unlikely]]
    return on_sharded("to_device", a, Keeps::all, [=](const Tensor& x) { return to_device(x, device); });
  if (a.defined() && a.device() == device) return a;
  return record("to_device", computed("to_device", [&] { return raw::to_device(a, device); }), {a}, {},
                [](const Backward& at) -> Gradients { return {raw::to_device(at.grad(), at.device(0))}; });
}

Tensor detach(const Tensor& a) { return lockstep::detach(a); }

}  // namespace lockstep::ops
