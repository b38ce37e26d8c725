// Entries of comparisons, choices, extremes, parts, convolution and batch norm.
#include <algorithm>
#include <cmath>

#include "engine/autograd/op_registry_internal.hpp"

namespace lockstep::ops {

namespace {

template <class Run, class F>
OpCase compare_case(std::string_view name, Run run, F f) {
  OpCase op{.name = name, .types = OpTypes::all, .differentiable = false};
  const auto variant = [&](std::string text, Dims a, Dims b) {
    return OpVariant{
        std::move(text),
        {{a}, {b}},
        [run](const Inputs& in) { return run(in[0], in[1]); },
        [f](const Plains& in) { return zip(in[0], in[1], [f](double x, double y) { return f(x, y) ? 1.0 : 0.0; }); }};
  };
  op.variants = {variant("equal sizes", {3, 41}, {3, 41}), variant("row", {3, 5}, {5}), variant("scalar", {2, 3}, {}),
                 variant("no element", {0, 3}, {3})};
  // Equal elements too: a tensor and a part of itself.
  op.variants.push_back(
      {"with itself",
       {{{4, 3}}},
       [run](const Inputs& in) { return run(in[0], ops::slice(in[0], 0, 1, 2)); },
       [f](const Plains& in) {
         return build({4, 3}, [&](const Dims& at) { return f(in[0].at(at), in[0].at({1, at[1]})) ? 1.0 : 0.0; });
       }});
  op.timed = variant("timed", {1 << 20}, {1 << 20});
  return op;
}

OpCase extreme_case(std::string_view name, const std::function<Tensor(const Tensor&, int, bool)>& run, bool largest,
                    bool wants_index) {
  OpCase op{.name = name, .types = OpTypes::all, .differentiable = false};
  const auto variant = [=](std::string text, Dims sizes, int dim, bool keep_dim) {
    return OpVariant{std::move(text),
                     {{sizes}},
                     [=](const Inputs& in) { return run(in[0], dim, keep_dim); },
                     [=](const Plains& in) {
                       const int on = dim < 0 ? dim + sizes.size() : dim;
                       Dims kept = sizes, out;
                       kept[on] = 1;
                       for (int i = 0; i < sizes.size(); ++i)
                         if (i != on || keep_dim) out.push_back(kept[i]);
                       return resized(build(kept,
                                            [&](Dims at) {
                                              std::int64_t found = 0;
                                              double best = in[0].at(at);
                                              for (at[on] = 1; at[on] < sizes[on]; ++at[on]) {
                                                const double value = in[0].at(at);
                                                if (largest ? value > best : value < best) {
                                                  best = value;
                                                  found = at[on];
                                                }
                                              }
                                              return wants_index ? static_cast<double>(found) : best;
                                            }),
                                      out);
                     }};
  };
  op.variants = {variant("last dim", {4, 9}, -1, false), variant("first dim", {5, 3, 2}, 0, true),
                 variant("middle", {2, 6, 3}, 1, false), variant("one element", {1}, 0, false),
                 variant("no row", {0, 3}, 1, false)};
  op.timed = variant("timed", {2048, 512}, 1, false);
  return op;
}

OpVariant part_variant(std::string text, Dims sizes, std::int64_t size, int dim,
                       const std::function<std::vector<Tensor>(const Tensor&)>& run) {
  // The parts put together from the last to the first.
  return {std::move(text),
          {{sizes}},
          [=](const Inputs& in) {
            std::vector<Tensor> parts = run(in[0]);
            std::reverse(parts.begin(), parts.end());
            return ops::cat(parts, dim);
          },
          [=](const Plains& in) {
            std::vector<std::int64_t> from;
            for (std::int64_t begin = (sizes[dim] - 1) / size * size; begin >= 0; begin -= size)
              for (std::int64_t i = begin; i < std::min(begin + size, sizes[dim]); ++i) from.push_back(i);
            return build(sizes, [&](Dims at) {
              at[dim] = from[static_cast<std::size_t>(at[dim])];
              return in[0].at(at);
            });
          }};
}

OpVariant conv_variant(std::string text, Dims x, Dims weight, bool bias, Dims stride, Dims padding) {
  std::vector<OpInput> inputs = {{x}, {weight}};
  if (bias) inputs.push_back({{weight[0]}});
  return {std::move(text), inputs,
          [=](const Inputs& in) { return ops::conv2d(in[0], in[1], bias ? &in[2] : nullptr, stride, padding); },
          [=](const Plains& in) {
            const Dims out = {x[0], weight[0], (x[2] + 2 * padding[0] - weight[2]) / stride[0] + 1,
                              (x[3] + 2 * padding[1] - weight[3]) / stride[1] + 1};
            return build(out, [&](const Dims& at) {
              double sum = bias ? in[2].at({at[1]}) : 0.0;
              for (std::int64_t c = 0; c < x[1]; ++c)
                for (std::int64_t i = 0; i < weight[2]; ++i)
                  for (std::int64_t j = 0; j < weight[3]; ++j) {
                    const std::int64_t y = at[2] * stride[0] + i - padding[0], z = at[3] * stride[1] + j - padding[1];
                    if (y < 0 || y >= x[2] || z < 0 || z >= x[3]) continue;
                    sum += in[0].at({at[0], c, y, z}) * in[1].at({at[1], c, i, j});
                  }
              return sum;
            });
          }};
}

OpVariant batch_norm_variant(std::string text, Dims sizes, bool affine, bool training) {
  const std::int64_t channels = sizes[1];
  std::vector<OpInput> inputs = {{sizes}};
  if (affine) inputs.insert(inputs.end(), 2, {{channels}});
  const std::vector<double> means(static_cast<std::size_t>(channels), 0.25);
  const std::vector<double> variances(static_cast<std::size_t>(channels), 0.5);
  return {std::move(text), inputs,
          [=](const Inputs& in) {
            const Tensor mean = from_values(means, {channels}, DType::float32, in[0].device());
            const Tensor variance = from_values(variances, {channels}, DType::float32, in[0].device());
            return ops::batch_norm(in[0], affine ? &in[1] : nullptr, affine ? &in[2] : nullptr, &mean, &variance,
                                   training);
          },
          [=](const Plains& in) {
            const std::int64_t per_channel = num_elements(sizes) / channels;
            const double count = static_cast<double>(per_channel);
            return build(sizes, [&](const Dims& at) {
              double mean = 0.25, variance = 0.5;
              if (training) {
                double sum = 0.0, squares = 0.0;
                const auto over = [&](auto f) {
                  build(sizes, [&](const Dims& other) {
                    if (other[1] == at[1]) f(in[0].at(other));
                    return 0.0;
                  });
                };
                over([&](double value) { sum += value; });
                mean = sum / count;
                over([&](double value) { squares += (value - mean) * (value - mean); });
                variance = squares / count;
              }
              const double normed = (in[0].at(at) - mean) / std::sqrt(variance + 1e-5);
              return affine ? normed * in[1].at({at[1]}) + in[2].at({at[1]}) : normed;
            });
          }};
}

}  // namespace

OpCase eq_case() {
  return compare_case(
      "eq", [](const Tensor& a, const Tensor& b) { return ops::eq(a, b); }, [](double a, double b) { return a == b; });
}
OpCase ne_case() {
  return compare_case(
      "ne", [](const Tensor& a, const Tensor& b) { return ops::ne(a, b); }, [](double a, double b) { return a != b; });
}
OpCase lt_case() {
  return compare_case(
      "lt", [](const Tensor& a, const Tensor& b) { return ops::lt(a, b); }, [](double a, double b) { return a < b; });
}
OpCase le_case() {
  return compare_case(
      "le", [](const Tensor& a, const Tensor& b) { return ops::le(a, b); }, [](double a, double b) { return a <= b; });
}
OpCase gt_case() {
  return compare_case(
      "gt", [](const Tensor& a, const Tensor& b) { return ops::gt(a, b); }, [](double a, double b) { return a > b; });
}
OpCase ge_case() {
  return compare_case(
      "ge", [](const Tensor& a, const Tensor& b) { return ops::ge(a, b); }, [](double a, double b) { return a >= b; });
}

OpCase where_case() {
  OpCase op{.name = "where", .types = OpTypes::all};
  op.tolerance = 4.0;
  // Where the first operand is above zero.
  const auto variant = [](std::string text, Dims condition, Dims a, Dims b) {
    return OpVariant{std::move(text),
                     {{condition}, {a}, {b}},
                     [](const Inputs& in) {
                       const Tensor zero = zeros({}, in[0].dtype(), in[0].device());
                       return ops::add(ops::where(ops::gt(in[0], zero), in[1], in[2]), ops::mul(in[0], zero));
                     },
                     [](const Plains& in) {
                       const Dims ab = broadcast_sizes(in[1].sizes, in[2].sizes, "reference");
                       return build(broadcast_sizes(ab, in[0].sizes, "reference"), [&](const Dims& at) {
                         return in[0].broadcast_at(at) > 0.0 ? in[1].broadcast_at(at) : in[2].broadcast_at(at);
                       });
                     }};
  };
  op.variants = {variant("equal sizes", {3, 17}, {3, 17}, {3, 17}), variant("broadcast", {4, 1}, {3}, {4, 3}),
                 variant("scalar", {2, 3}, {2, 3}, {}), variant("no element", {0, 3}, {3}, {0, 3})};
  op.timed = variant("timed", {1 << 20}, {1 << 20}, {1 << 20});
  return op;
}

OpCase max_case() {
  return extreme_case(
      "max", [](const Tensor& a, int dim, bool keep) { return ops::max(a, dim, keep); }, true, false);
}
OpCase min_case() {
  return extreme_case(
      "min", [](const Tensor& a, int dim, bool keep) { return ops::min(a, dim, keep); }, false, false);
}
OpCase argmax_case() {
  return extreme_case(
      "argmax", [](const Tensor& a, int dim, bool keep) { return ops::argmax(a, dim, keep); }, true, true);
}

OpCase split_case() {
  OpCase op{.name = "split", .types = OpTypes::all};
  const auto variant = [](std::string text, Dims sizes, std::int64_t size, int dim) {
    return part_variant(std::move(text), sizes, size, dim, [=](const Tensor& a) { return ops::split(a, size, dim); });
  };
  op.variants = {variant("rows", {6, 3}, 2, 0), variant("uneven", {2, 7}, 3, 1), variant("one part", {3, 2}, 5, 0)};
  op.timed = variant("timed", {1024, 1024}, 256, 1);
  return op;
}
OpCase chunk_case() {
  OpCase op{.name = "chunk", .types = OpTypes::all};
  const auto variant = [](std::string text, Dims sizes, int count, std::int64_t size, int dim) {
    return part_variant(std::move(text), sizes, size, dim, [=](const Tensor& a) { return ops::chunk(a, count, dim); });
  };
  op.variants = {variant("even", {2, 6}, 3, 2, 1), variant("uneven", {7, 2}, 3, 3, 0),
                 variant("fewer than asked", {5}, 4, 2, 0)};
  op.timed = variant("timed", {1024, 1024}, 4, 256, 1);
  return op;
}

OpCase conv2d_case() {
  OpCase op{.name = "conv2d", .layout_keeps_bits = false};
  op.tolerance = 16.0;
  op.variants = {conv_variant("plain", {2, 3, 5, 6}, {4, 3, 3, 2}, true, {1, 1}, {0, 0}),
                 conv_variant("patches", {2, 2, 4, 6}, {3, 2, 2, 2}, true, {2, 2}, {0, 0}),
                 conv_variant("stride and padding", {1, 2, 7, 5}, {2, 2, 3, 3}, false, {2, 3}, {1, 2}),
                 conv_variant("one by one", {1, 1, 1, 1}, {1, 1, 1, 1}, true, {1, 1}, {0, 0}),
                 conv_variant("no image", {0, 2, 3, 3}, {2, 2, 2, 2}, true, {1, 1}, {0, 0})};
  op.timed = conv_variant("timed", {4, 3, 224, 224}, {256, 3, 14, 14}, true, {14, 14}, {0, 0});
  op.flops = 2.0 * 4 * 256 * 256 * 3 * 14 * 14;
  return op;
}

OpCase batch_norm_case() {
  OpCase op{.name = "batch_norm"};
  op.tolerance = 32.0;
  op.variants = {batch_norm_variant("training", {3, 2, 2, 3}, true, true),
                 batch_norm_variant("rows", {7, 3}, false, true),
                 batch_norm_variant("evaluation", {3, 2, 2, 3}, true, false),
                 batch_norm_variant("evaluation of rows", {2, 3}, false, false)};
  op.timed = batch_norm_variant("timed", {16, 64, 32, 32}, true, true);
  return op;
}

}  // namespace lockstep::ops
