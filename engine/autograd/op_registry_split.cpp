// Registry entries of split and chunk.
#include <algorithm>

#include "engine/autograd/op_registry_internal.hpp"

namespace lockstep::ops {

namespace {

OpVariant split_variant(std::string text, Dims sizes, std::int64_t size, int dim,
                        const std::function<std::vector<Tensor>(const Tensor&)>& run) {
  // The results concatenated in reverse order.
  return {std::move(text),
          {{sizes}},
          [=](const Inputs& in) {
            std::vector<Tensor> results = run(in[0]);
            std::reverse(results.begin(), results.end());
            return ops::cat(results, dim);
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

}  // namespace

OpCase split_case() {
  OpCase op{.name = "split", .types = OpTypes::all};
  const auto variant = [](std::string text, Dims sizes, std::int64_t size, int dim) {
    return split_variant(std::move(text), sizes, size, dim, [=](const Tensor& a) { return ops::split(a, size, dim); });
  };
  op.variants = {variant("rows", {6, 3}, 2, 0), variant("uneven", {2, 7}, 3, 1), variant("one part", {3, 2}, 5, 0)};
  op.timed = variant("timed", {1024, 1024}, 256, 1);
  return op;
}
OpCase chunk_case() {
  OpCase op{.name = "chunk", .types = OpTypes::all};
  const auto variant = [](std::string text, Dims sizes, int count, std::int64_t size, int dim) {
    return split_variant(std::move(text), sizes, size, dim, [=](const Tensor& a) { return ops::chunk(a, count, dim); });
  };
  op.variants = {variant("even", {2, 6}, 3, 2, 1), variant("uneven", {7, 2}, 3, 3, 0),
                 variant("fewer than asked", {5}, 4, 2, 0)};
  op.timed = variant("timed", {1024, 1024}, 4, 256, 1);
  return op;
}

}  // namespace lockstep::ops
