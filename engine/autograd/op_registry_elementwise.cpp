// Registry entries of the element-wise operations.
#include "engine/autograd/op_registry_internal.hpp"

namespace lockstep::ops {

namespace {

const Dims large = {1 << 20};  // for timings: exceeds the second-level cache

// Variants with two operands: equal sizes, broadcasting of either operand, a scalar, one element, none.
template <class Run, class F>
OpCase binary_case(std::string_view name, OpTypes types, Run run, F f, double low = -1.5) {
  OpCase op{.name = name, .types = types};
  const auto variant = [&](std::string text, Dims a, Dims b) {
    return OpVariant{std::move(text),
                     {{a, -1.5, 1.5, {}}, {b, low, 1.5, {}}},
                     [run](const Inputs& in) { return run(in[0], in[1]); },
                     [f](const Plains& in) { return zip(in[0], in[1], f); }};
  };
  op.variants = {variant("equal sizes", {3, 41}, {3, 41}),
                 variant("row", {3, 5}, {5}),
                 variant("column", {4, 1}, {4, 3}),
                 variant("both", {3, 1, 2}, {5, 1}),
                 variant("scalar", {2, 3}, {}),
                 variant("one element", {1}, {1, 1}),
                 variant("no element", {0, 3}, {3}),
                 variant("four dims", {2, 3, 2, 4}, {3, 1, 4})};
  op.timed = variant("timed", large, large);
  return op;
}

template <class Run, class F>
OpCase unary_case(std::string_view name, OpTypes types, Run run, F f, double low = -1.5) {
  OpCase op{.name = name, .types = types};
  const auto variant = [&](std::string text, Dims sizes) {
    return OpVariant{std::move(text),
                     {{sizes, low, 1.5, {}}},
                     [run](const Inputs& in) { return run(in[0]); },
                     [f](const Plains& in) { return map(in[0], f); }};
  };
  op.variants = {variant("matrix", {3, 43}), variant("scalar", {}), variant("one element", {1, 1}),
                 variant("no element", {2, 0}), variant("four dims", {2, 3, 2, 4})};
  op.timed = variant("timed", large);
  return op;
}

// Additional variants with a constant.
template <class Run, class F>
void with_number(OpCase& op, std::string text, Run run, F f) {
  op.variants.push_back({std::move(text),
                         {{{3, 7}}},
                         [run](const Inputs& in) { return run(in[0]); },
                         [f](const Plains& in) { return map(in[0], f); }});
}

}  // namespace

OpCase add_case() {
  OpCase op = binary_case(
      "add", OpTypes::all, [](const Tensor& a, const Tensor& b) { return ops::add(a, b); },
      [](double a, double b) { return a + b; });
  with_number(
      op, "number", [](const Tensor& a) { return ops::add(a, 3); }, [](double a) { return a + 3.0; });
  return op;
}
OpCase sub_case() {
  OpCase op = binary_case(
      "sub", OpTypes::numbers, [](const Tensor& a, const Tensor& b) { return ops::sub(a, b); },
      [](double a, double b) { return a - b; });
  with_number(
      op, "number", [](const Tensor& a) { return ops::sub(a, 3); }, [](double a) { return a - 3.0; });
  return op;
}
OpCase rsub_case() {
  return unary_case(
      "rsub", OpTypes::numbers, [](const Tensor& a) { return ops::rsub(2, a); }, [](double a) { return 2.0 - a; });
}
OpCase mul_case() {
  OpCase op = binary_case(
      "mul", OpTypes::all, [](const Tensor& a, const Tensor& b) { return ops::mul(a, b); },
      [](double a, double b) { return a * b; });
  with_number(
      op, "number", [](const Tensor& a) { return ops::mul(a, -2); }, [](double a) { return a * -2.0; });
  return op;
}
OpCase div_case() {
  OpCase op = binary_case(
      "div", OpTypes::all, [](const Tensor& a, const Tensor& b) { return ops::div(a, b); },
      [](double a, double b) { return a / b; }, 0.5);
  with_number(
      op, "number", [](const Tensor& a) { return ops::div(a, 8.0); }, [](double a) { return a / 8.0; });
  op.tolerance = 2.0;
  return op;
}
OpCase rdiv_case() {
  OpCase op = unary_case(
      "rdiv", OpTypes::all, [](const Tensor& a) { return ops::rdiv(2.0, a); }, [](double a) { return 2.0 / a; }, 0.5);
  op.tolerance = 2.0;
  return op;
}

OpCase neg_case() {
  return unary_case(
      "neg", OpTypes::numbers, [](const Tensor& a) { return ops::neg(a); }, [](double a) { return -a; });
}
OpCase sqrt_case() {
  return unary_case(
      "sqrt", OpTypes::floating, [](const Tensor& a) { return ops::sqrt(a); }, [](double a) { return std::sqrt(a); },
      0.2);
}
OpCase rsqrt_case() {
  OpCase op = unary_case(
      "rsqrt", OpTypes::floating, [](const Tensor& a) { return ops::rsqrt(a); },
      [](double a) { return 1.0 / std::sqrt(a); }, 0.2);
  op.tolerance = 2.0;
  return op;
}
OpCase exp_case() {
  return unary_case(
      "exp", OpTypes::floating, [](const Tensor& a) { return ops::exp(a); }, [](double a) { return std::exp(a); });
}
OpCase log_case() {
  return unary_case(
      "log", OpTypes::floating, [](const Tensor& a) { return ops::log(a); }, [](double a) { return std::log(a); }, 0.2);
}
OpCase abs_case() {
  return unary_case(
      "abs", OpTypes::numbers, [](const Tensor& a) { return ops::abs(a); }, [](double a) { return std::fabs(a); });
}
OpCase relu_case() {
  return unary_case(
      "relu", OpTypes::numbers, [](const Tensor& a) { return ops::relu(a); },
      [](double a) { return a > 0.0 ? a : 0.0; });
}
OpCase pow_case() {
  OpCase op = unary_case(
      "pow", OpTypes::all, [](const Tensor& a) { return ops::pow(a, 2); }, [](double a) { return a * a; });
  for (const int exponent : {0, 1, 3, 4})
    with_number(
        op, str("to ", exponent), [exponent](const Tensor& a) { return ops::pow(a, exponent); },
        [exponent](double a) { return std::pow(a, exponent); });
  op.tolerance = 4.0;
  return op;
}

}  // namespace lockstep::ops
