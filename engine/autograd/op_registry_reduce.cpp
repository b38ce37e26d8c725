// Registry entries of products, reductions and index_select.
#include <algorithm>

#include "engine/autograd/op_registry_internal.hpp"
#include "engine/core/checked.hpp"

namespace lockstep::ops {

namespace {

template <class Reference>
OpVariant matmul_variant(std::string text, Dims a, Dims b, Reference reference) {
  return {std::move(text),
          {{a}, {b}},
          [](const Inputs& in) { return ops::matmul(in[0], in[1]); },
          [reference](const Plains& in) { return reference(in[0], in[1]); }};
}

// Batches of matrices, broadcast over the leading dims.
Plain batched(const Plain& a, const Plain& b) {
  Dims batch_a, batch_b;
  for (int dim = 0; dim < a.sizes.size() - 2; ++dim) batch_a.push_back(a.sizes[dim]);
  for (int dim = 0; dim < b.sizes.size() - 2; ++dim) batch_b.push_back(b.sizes[dim]);
  Dims sizes = broadcast_sizes(batch_a, batch_b, "reference");
  sizes.push_back(a.sizes[a.sizes.size() - 2]);
  sizes.push_back(b.sizes.back());
  return build(sizes, [&](const Dims& at) {
    const int last = at.size() - 1;
    double sum = 0.0;
    for (std::int64_t k = 0; k < a.sizes.back(); ++k) {
      Dims of_a = at, of_b = at;
      of_a[last] = k;
      of_b[last - 1] = k;
      sum += a.broadcast_at(of_a) * b.broadcast_at(of_b);
    }
    return sum;
  });
}

OpVariant linear_variant(std::string text, Dims x, Dims weight, bool bias) {
  std::vector<OpInput> inputs = {{x}, {weight}};
  if (bias) inputs.push_back({{weight[0]}});
  return {std::move(text), std::move(inputs),
          [](const Inputs& in) { return ops::linear(in[0], in[1], in.size() == 3 ? &in[2] : nullptr); },
          [](const Plains& in) {
            Dims sizes = in[0].sizes;
            Dims rows = {1, sizes.back()};
            for (int dim = 0; dim < sizes.size() - 1; ++dim) rows[0] = bounded_product(rows[0], sizes[dim]);
            sizes[sizes.size() - 1] = in[1].sizes[0];
            const Plain result = resized(product(resized(in[0], rows), swapped(in[1], 0, 1)), sizes);
            return in.size() == 3 ? zip(result, in[2], [](double a, double b) { return a + b; }) : result;
          }};
}

// No dims: over all elements.
OpVariant reduce_variant(std::string text, bool is_mean, Dims sizes, Dims dims, bool keep_dims) {
  return {std::move(text),
          {{sizes}},
          [=](const Inputs& in) {
            if (dims.empty()) return is_mean ? ops::mean(in[0]) : ops::sum(in[0]);
            return is_mean ? ops::mean(in[0], dims, keep_dims) : ops::sum(in[0], dims, keep_dims);
          },
          [=](const Plains& in) {
            Dims over, kept = sizes;
            if (dims.empty()) {
              for (int dim = 0; dim < sizes.size(); ++dim) over.push_back(dim);
            } else {
              for (const std::int64_t dim : dims) over.push_back(dim < 0 ? dim + sizes.size() : dim);
            }
            for (const std::int64_t dim : over) kept[static_cast<int>(dim)] = 1;
            Plain result = total(in[0], over);
            if (keep_dims) result.sizes = kept;
            const double count =
                static_cast<double>(num_elements(sizes)) / std::max(1.0, static_cast<double>(result.values.size()));
            return is_mean ? map(result, [count](double x) { return x / count; }) : result;
          }};
}

OpCase reduce_case(std::string_view name, bool is_mean) {
  OpCase op{.name = name, .types = is_mean ? OpTypes::floating : OpTypes::all};
  op.tolerance = 8.0;
  op.variants = {reduce_variant("all", is_mean, {5, 7}, {}, false),
                 reduce_variant("scalar", is_mean, {}, {}, false),
                 reduce_variant("more than two blocks", is_mean, {3, 901}, {}, false),
                 reduce_variant("last dim", is_mean, {3, 37}, {-1}, false),
                 reduce_variant("first dim", is_mean, {45, 9}, {0}, true),
                 reduce_variant("first dim of many", is_mean, {1100, 10}, {0}, false),
                 reduce_variant("middle", is_mean, {2, 3, 9}, {1}, false),
                 reduce_variant("outer two", is_mean, {4, 3, 10}, {0, 1}, false),
                 reduce_variant("first and last", is_mean, {3, 4, 5}, {2, 0}, true),
                 reduce_variant("dim of one", is_mean, {3, 1, 2}, {1}, false)};
  if (!is_mean) {
    op.variants.push_back(reduce_variant("no element", false, {0, 3}, {}, false));
    op.variants.push_back(reduce_variant("dim of none", false, {3, 0}, {1}, true));
  }
  op.timed = reduce_variant("timed", is_mean, {1024, 1024}, {}, false);
  return op;
}

}  // namespace

OpCase matmul_case() {
  OpCase op{.name = "matmul", .strides_keep_bits = false};
  op.tolerance = 16.0;
  const auto row = [](const Plain& a) { return resized(a, Dims{1, a.sizes[0]}); };
  const auto column = [](const Plain& a) { return resized(a, Dims{a.sizes[0], 1}); };
  op.variants = {
      matmul_variant("matrices", {5, 19}, {19, 7}, product),
      matmul_variant("one by one", {1, 1}, {1, 1}, product),
      matmul_variant("no inner element", {2, 0}, {0, 3}, product),
      matmul_variant("no row", {0, 4}, {4, 3}, product),
      matmul_variant("vectors", {6}, {6},
                     [=](const Plain& a, const Plain& b) { return resized(product(row(a), column(b)), {}); }),
      matmul_variant("vector x matrix", {4}, {4, 3},
                     [=](const Plain& a, const Plain& b) { return resized(product(row(a), b), {3}); }),
      matmul_variant("matrix x vector", {3, 4}, {4},
                     [=](const Plain& a, const Plain& b) { return resized(product(a, column(b)), {3}); }),
      matmul_variant("batch x matrix", {2, 3, 4}, {4, 5}, batched),
      matmul_variant("matrix x batch", {3, 4}, {2, 4, 5}, batched),
      matmul_variant("batches", {2, 2, 3, 4}, {2, 2, 4, 2}, batched),
      matmul_variant("broadcast batches", {2, 1, 3, 4}, {3, 4, 2}, batched),
      matmul_variant("batch x vector", {2, 3, 4}, {4}, [=](const Plain& a, const Plain& b) {
        return resized(batched(a, column(b)), {2, 3});
      })};
  op.timed = matmul_variant("timed", {512, 512}, {512, 512}, product);
  op.flops = 2.0 * 512 * 512 * 512;
  return op;
}

OpCase linear_case() {
  OpCase op{.name = "linear", .strides_keep_bits = false};
  op.tolerance = 16.0;
  op.variants = {
      linear_variant("bias", {5, 17}, {6, 17}, true),        linear_variant("no bias", {5, 17}, {6, 17}, false),
      linear_variant("three dims", {2, 3, 4}, {5, 4}, true), linear_variant("vector", {4}, {3, 4}, true),
      linear_variant("no row", {0, 4}, {3, 4}, true),        linear_variant("no input", {2, 0}, {3, 0}, true),
      linear_variant("one by one", {1, 1}, {1, 1}, true)};
  op.timed = linear_variant("timed", {512, 512}, {512, 512}, true);
  op.flops = 2.0 * 512 * 512 * 512;
  return op;
}

OpCase sum_case() { return reduce_case("sum", false); }
OpCase mean_case() { return reduce_case("mean", true); }

OpCase mse_loss_case() {
  OpCase op{.name = "mse_loss"};
  op.tolerance = 8.0;
  const auto variant = [](std::string text, Dims sizes) {
    return OpVariant{std::move(text),
                     {{sizes}, {sizes}},
                     [](const Inputs& in) { return ops::mse_loss(in[0], in[1]); },
                     [](const Plains& in) {
                       double sum = 0.0;
                       for (std::size_t i = 0; i < in[0].values.size(); ++i) {
                         const double difference = in[0].values[i] - in[1].values[i];
                         sum += difference * difference;
                       }
                       return Plain{{}, {sum / static_cast<double>(in[0].values.size())}};
                     }};
  };
  op.variants = {variant("matrix", {5, 9}), variant("one element", {1}), variant("two blocks", {2, 700})};
  op.timed = variant("timed", {1024, 1024});
  return op;
}

OpCase index_select_case() {
  OpCase op{.name = "index_select", .types = OpTypes::all};
  const auto variant = [](std::string text, Dims sizes, int dim, std::vector<std::int64_t> indices) {
    OpInput index{Dims{static_cast<std::int64_t>(indices.size())}};
    index.indices = indices;
    return OpVariant{std::move(text),
                     {{sizes}, index},
                     [dim](const Inputs& in) { return ops::index_select(in[0], dim, in[1]); },
                     [dim, sizes, indices](const Plains& in) {
                       Dims out = sizes;
                       out[dim] = static_cast<std::int64_t>(indices.size());
                       return build(out, [&](Dims at) {
                         at[dim] = indices[static_cast<std::size_t>(at[dim])];
                         return in[0].at(at);
                       });
                     }};
  };
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 4096; ++i) many.push_back(i * 7919 % 1024);
  op.variants = {variant("rows", {5, 3}, 0, {4, 0, 2}), variant("a row more than once", {5, 3}, 0, {1, 1, 3, 1}),
                 variant("columns", {2, 4}, 1, {3, 3, 0}), variant("middle", {2, 3, 4}, 1, {2, 0}),
                 variant("one", {1, 1}, 0, {0})};
  op.timed = variant("timed", {1024, 512}, 0, many);
  op.tolerance = 4.0;
  return op;
}

}  // namespace lockstep::ops
