// Registry entries of comparisons, where, and extremes along a dim.

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
  // With equal elements: a tensor and one of its rows.
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
  OpCase op{.name = name, .types = OpTypes::all, .differentiable = !wants_index, .differentiable_if_sharded = false};
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
  // The condition is: first operand > 0.
  const auto variant = [](std::string text, Dims condition, Dims a, Dims b) {
    return OpVariant{std::move(text),
                     {{condition}, {a}, {b}},
                     [](const Inputs& in) {
                       const Tensor zero = beside(in[0], zeros({}, in[0].dtype(), in[0].device()));
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
  op.timed = {"timed",
              {{.sizes = {1 << 20}, .condition = true}, {{1 << 20}}, {{1 << 20}}},
              [](const Inputs& in) { return ops::where(in[0], in[1], in[2]); },
              {}};
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

}  // namespace lockstep::ops
