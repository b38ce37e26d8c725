// Registry entries of convolution and batch norm.
#include <cmath>

#include "engine/autograd/op_registry_internal.hpp"

namespace lockstep::ops {

namespace {

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
            const Tensor mean = beside(in[0], from_values(means, {channels}, DType::float32, in[0].device()));
            const Tensor variance = beside(in[0], from_values(variances, {channels}, DType::float32, in[0].device()));
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

OpCase conv2d_case() {
  OpCase op{.name = "conv2d", .strides_keep_bits = false};
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
