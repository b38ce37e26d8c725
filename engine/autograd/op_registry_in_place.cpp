// Registry entries of in-place operations.
#include "engine/autograd/op_registry_internal.hpp"

namespace lockstep::ops {

namespace {

const Dims large = {1024, 1024};

// `to` is cloned first, so the inputs of a check do not change.
template <class Run, class F>
OpCase in_place_case(std::string_view name, OpTypes types, Run run, F f, double low = -1.0) {
  OpCase op{.name = name, .types = types};
  const auto variant = [&](std::string text, Dims to, Dims value) {
    return OpVariant{std::move(text),
                     {{to}, {value, low}},
                     [run](const Inputs& in) {
                       const Tensor target = ops::clone(in[0]);
                       run(target, in[1]);
                       return target;
                     },
                     [f](const Plains& in) { return zip(in[0], in[1], f); }};
  };
  op.variants = {variant("equal sizes", {3, 41}, {3, 41}), variant("row", {3, 5}, {5}),
                 variant("column", {3, 5}, {3, 1}), variant("one element", {1}, {1}),
                 variant("no element", {0, 3}, {3})};
  op.timed = variant("timed", large, large);
  return op;
}

// The operation on columns of a view of the clone, which is the result.
template <class Run, class F>
OpVariant on_view(Run run, F f) {
  return {"view",
          {{{5, 3}}, {{3, 2}}},
          [run](const Inputs& in) {
            const Tensor target = ops::clone(in[0]);
            run(ops::slice(ops::transpose(target, 0, 1), 1, 1, 3), in[1]);
            return target;
          },
          [f](const Plains& in) {
            return build(in[0].sizes, [&](const Dims& at) {
              return at[0] < 1 || at[0] > 2 ? in[0].at(at) : f(in[0].at(at), in[1].at({at[1], at[0] - 1}));
            });
          }};
}

template <class Run, class F>
OpCase in_place_and_on_view(std::string_view name, OpTypes types, Run run, F f) {
  OpCase op = in_place_case(name, types, run, f);
  op.variants.push_back(on_view(run, f));
  return op;
}

}  // namespace

OpCase add_in_place_case() {
  OpCase op = in_place_and_on_view(
      "add_", OpTypes::all, [](const Tensor& to, const Tensor& value) { ops::add_(to, value); },
      [](double a, double b) { return a + b; });
  OpVariant scaled = op.variants[1];
  scaled.name = "scaled";
  scaled.run = [](const Inputs& in) {
    const Tensor target = ops::clone(in[0]);
    ops::add_(target, in[1], 2.0);
    return target;
  };
  scaled.reference = [](const Plains& in) { return zip(in[0], in[1], [](double a, double b) { return a + 2.0 * b; }); };
  op.variants.push_back(scaled);
  return op;
}
OpCase sub_in_place_case() {
  return in_place_and_on_view(
      "sub_", OpTypes::numbers, [](const Tensor& to, const Tensor& value) { ops::sub_(to, value); },
      [](double a, double b) { return a - b; });
}
OpCase mul_in_place_case() {
  OpCase op = in_place_and_on_view(
      "mul_", OpTypes::all, [](const Tensor& to, const Tensor& value) { ops::mul_(to, value); },
      [](double a, double b) { return a * b; });
  OpVariant squared = op.variants[0];
  squared.name = "by itself";
  squared.run = [](const Inputs& in) {
    const Tensor target = ops::mul(in[0], in[1]);
    ops::mul_(target, target);
    return target;
  };
  squared.reference = [](const Plains& in) {
    return zip(in[0], in[1], [](double a, double b) { return a * b * a * b; });
  };
  op.variants.push_back(squared);
  op.tolerance = 8.0;
  return op;
}
OpCase div_in_place_case() {
  OpCase op = in_place_case(
      "div_", OpTypes::floating, [](const Tensor& to, const Tensor& value) { ops::div_(to, value); },
      [](double a, double b) { return a / b; }, 0.5);
  op.tolerance = 8.0;
  return op;
}
OpCase relu_in_place_case() {
  OpCase op{.name = "relu_", .types = OpTypes::numbers};
  const auto variant = [](std::string text, Dims sizes) {
    return OpVariant{std::move(text),
                     {{sizes}},
                     [](const Inputs& in) {
                       const Tensor target = ops::clone(in[0]);
                       ops::relu_(target);
                       return target;
                     },
                     [](const Plains& in) {
                       return build(in[0].sizes,
                                    [&](const Dims& at) { return in[0].at(at) > 0.0 ? in[0].at(at) : 0.0; });
                     }};
  };
  op.variants = {variant("matrix", {3, 41}), variant("one element", {1}), variant("no element", {0, 3})};
  op.timed = variant("timed", large);
  return op;
}
OpCase copy_in_place_case() {
  return in_place_and_on_view(
      "copy_", OpTypes::all, [](const Tensor& to, const Tensor& from) { ops::copy_(to, from); },
      [](double, double b) { return b; });
}
OpCase zero_in_place_case() {
  return in_place_and_on_view(
      "zero_", OpTypes::all, [](const Tensor& to, const Tensor&) { ops::zero_(to); },
      [](double, double) { return 0.0; });
}

OpCase fill_in_place_case() {
  return in_place_and_on_view(
      "fill_", OpTypes::all, [](const Tensor& to, const Tensor&) { ops::fill_(to, 3.0); },
      [](double, double) { return 3.0; });
}

}  // namespace lockstep::ops
