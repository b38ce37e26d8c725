// Operations without gradients, where the registry (engine/autograd/op_cases_test.cpp) does not cover them: types,
// errors, in-place operations on shared memory, copies between devices.
#include "engine/tensor/ops.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::raw {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const device::Device cpu = {device::Kind::cpu, 0};
const device::Device sim = {device::Kind::sim, 0};
const device::Device meta = {device::Kind::meta, 0};

class RawOps : public testing::Test {
 protected:
  RawOps() : scope_(context_) { device::set_poison(true); }
  ~RawOps() override {
    device::synchronize_all();
    for (const device::OrderViolation& violation : device::order_violations()) ADD_FAILURE() << violation.message;
  }
  static Tensor floats(std::vector<double> values, Dims sizes, device::Device device = cpu) {
    return from_values(values, sizes, DType::float32, device);
  }
  template <class F>
  static std::string message_of(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      EXPECT_FALSE(error.remedy().empty()) << error.what();
      return error.message();
    }
    return "no error";
  }

  RankContext context_{0, 1};
  RankScope scope_;
};

TEST_F(RawOps, PromoteTypes) {
  const Tensor f = floats({1.5, 2.5}, {2}), i = from_values(std::vector<std::int64_t>{2, 3}, {2}, DType::int64, cpu);
  EXPECT_EQ(add(f, i).dtype(), DType::float32);
  EXPECT_THAT(to_doubles(mul(i, f)), ElementsAre(3.0, 7.5));
  EXPECT_EQ(div(i, i).dtype(), DType::float32);
  EXPECT_EQ(add(cast(f, DType::float16), cast(f, DType::bfloat16)).dtype(), DType::float32);
  EXPECT_EQ(sum(cast(i, DType::boolean)).dtype(), DType::int64);
}

// The kind of a number decides, not its value.
TEST_F(RawOps, NumbersMakeFloatsOfIntegersUnlessTheyAreIntegers) {
  const Tensor i = from_values(std::vector<std::int64_t>{2, 3}, {2}, DType::int64, cpu);
  const Tensor narrow = cast(i, DType::int32), flags = cast(i, DType::boolean);
  for (const auto& result : {add(i, 2), sub(i, 2), rsub(2, i), mul(i, 2), pow(i, 2), add(flags, 1)})
    EXPECT_EQ(result.dtype(), DType::int64);
  EXPECT_EQ(mul(narrow, 2).dtype(), DType::int32);
  for (const auto& result : {add(i, 2.0), sub(i, 2.0), rsub(2.0, i), mul(i, 1.0), pow(i, 2.0), pow(i, -1), div(i, 1),
                             add(flags, 1.0), mul(narrow, 1.0)})
    EXPECT_EQ(result.dtype(), DType::float32);
  EXPECT_THAT(to_doubles(add(i, 2.5)), ElementsAre(4.5, 5.5));
  EXPECT_THAT(to_doubles(pow(i, 3)), ElementsAre(8.0, 27.0));
  EXPECT_THAT(to_doubles(pow(i, -1.0)), ElementsAre(0.5, testing::DoubleNear(1.0 / 3.0, 1e-7)));
  EXPECT_EQ(mul(cast(i, DType::float16), 2.5).dtype(), DType::float16);
  EXPECT_THAT(message_of([&] { mul(narrow, std::int64_t{1} << 40); }),
              HasSubstr("mul: 1099511627776 does not fit int32"));
  // 2^53 + 1 is no float64.
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  const Tensor back = sub(sub(add(i, large), large), i);
  EXPECT_THAT(to_doubles(back), ElementsAre(0.0, 0.0));
  EXPECT_THAT(to_doubles(sub(rsub(large, i), add(mul(i, -1), large))), ElementsAre(0.0, 0.0));
}

TEST_F(RawOps, TensorsWithoutDimsCountByKindOnly) {
  const Tensor values = floats({1.5, 2.5}, {2}), half = cast(values, DType::float16);
  const Tensor scalar = floats({2.0}, {}), wide = cast(scalar, DType::float64), integer = cast(scalar, DType::int64);
  const Tensor narrow = cast(values, DType::int32);
  EXPECT_EQ(result_type(half, scalar), DType::float16);
  EXPECT_EQ(result_type(wide, values), DType::float32);
  EXPECT_EQ(result_type(narrow, integer), DType::int32);
  EXPECT_EQ(result_type(narrow, wide), DType::float64);
  EXPECT_EQ(result_type(cast(narrow, DType::boolean), integer), DType::int64);
  EXPECT_EQ(result_type(scalar, wide), DType::float64) << "both have no dims";
  EXPECT_EQ(result_type(reshape(wide, {1}), values), DType::float64) << "one element, and a dim";
  EXPECT_EQ(mul(half, scalar).dtype(), DType::float16);
  EXPECT_THAT(to_doubles(sub(scalar, half)), ElementsAre(0.5, -0.5));
}

TEST_F(RawOps, RefusesUndefinedOperands) {
  const Tensor a = floats({1, 2}, {2}), none;
  const auto refuses = [](const char* name, const auto& call) {
    EXPECT_THAT(message_of(call), HasSubstr(std::string(name) + ": an operand is undefined"));
  };
  refuses("add", [&] { add(a, none); });
  refuses("add", [&] { add(none, a); });
  refuses("add", [&] { add(none, 1); });
  refuses("div", [&] { div(none, 2); });
  refuses("pow", [&] { pow(none, 2); });
  refuses("sqrt", [&] { sqrt(none); });
  refuses("neg", [&] { neg(none); });
  refuses("contiguous", [&] { contiguous(none); });
  refuses("clone", [&] { clone(none); });
  refuses("reshape", [&] { reshape(none, {2}); });
  refuses("cast", [&] { cast(none, DType::float64); });
  refuses("to_device", [&] { to_device(none, cpu); });
  refuses("fill_", [&] { fill_(none, 0.0); });
  refuses("copy_", [&] { copy_(none, a); });
  refuses("copy_", [&] { copy_(a, none); });
  refuses("cat", [&] { cat({none, a}, 0); });
  refuses("cat", [&] { cat({a, none}, 0); });
  refuses("sum", [&] { sum(none); });
  refuses("sum", [&] { sum(none, {0}, false); });
  refuses("sum_to", [&] { sum_to(none, {1}); });
  refuses("max", [&] { max(none, 0, false); });
}

TEST_F(RawOps, ErrorsNameOperationAndOperands) {
  const Tensor a = floats({1, 2, 3, 4, 5, 6}, {2, 3}), b = floats({1, 2}, {2});
  EXPECT_THAT(message_of([&] { add(a, b); }), HasSubstr("add: sizes (2, 3) and (2,)"));
  EXPECT_THAT(message_of([&] { matmul(a, a); }), HasSubstr("matmul: inner sizes do not match: (2, 3) x (2, 3)"));
  EXPECT_THAT(message_of([&] { matmul(a, floats({1}, {})); }), HasSubstr("matmul"));
  EXPECT_THAT(message_of([&] { linear(a, floats({1, 2}, {1, 2}), nullptr); }), HasSubstr("linear"));
  EXPECT_THAT(message_of([&] { linear(a, a, &a); }), HasSubstr("bias (2, 3)"));
  EXPECT_THAT(message_of([&] { matmul(a, cast(transpose(a, 0, 1), DType::float64)); }),
              HasSubstr("matmul: operands of different types"));
  EXPECT_THAT(message_of([&] { add(a, floats({1}, {1}, sim)); }),
              testing::AllOf(HasSubstr("add: operands on different devices"), HasSubstr("cpu"), HasSubstr("sim:0")));
  EXPECT_THAT(message_of([&] { add(a, Tensor()); }), HasSubstr("add: an operand is undefined"));
  EXPECT_THAT(message_of([&] { sqrt(cast(a, DType::int64)); }), HasSubstr("sqrt: needs a floating-point tensor"));
  EXPECT_THAT(message_of([&] { mean(cast(a, DType::int32)); }), HasSubstr("mean"));
  EXPECT_THAT(message_of([&] { neg(cast(a, DType::boolean)); }), HasSubstr("neg: is not defined for bool"));
  EXPECT_THAT(message_of([&] { sum(a, {0, -2}, false); }), HasSubstr("sum: dim -2 is named twice"));
  EXPECT_THAT(message_of([&] { sum(a, {2}, false); }), HasSubstr("dim 2 is out of range"));
  EXPECT_THAT(message_of([&] { sum_to(a, {2}); }), HasSubstr("sum_to: (2, 3) is not a broadcast of (2,)"));
  EXPECT_THAT(message_of([&] { mse_loss(a, b); }), HasSubstr("mse_loss: input (2, 3) and target (2,)"));
  EXPECT_THAT(message_of([&] { cat({a, b}, 0); }), HasSubstr("cat: (2,) does not match (2, 3)"));
  EXPECT_THAT(message_of([&] { cat({}, 0); }), HasSubstr("cat: no tensors"));
  EXPECT_THAT(message_of([&] { add_(b, a); }), HasSubstr("add_"));
  EXPECT_THAT(message_of([&] { copy_(b, a); }), HasSubstr("copy_"));
  EXPECT_THAT(message_of([&] { mul_(cast(a, DType::int64), a); }),
              HasSubstr("mul_: a floating-point value into int64"));
  EXPECT_THAT(message_of([&] { add_(expand(b, {3, 2}), a); }), HasSubstr("add_"));
  EXPECT_THAT(message_of([&] { add_(expand(b, {3, 2}), b); }), HasSubstr("repeats one element"));
  EXPECT_THAT(message_of([&] { reshape(transpose(a, 0, 1), {4}); }), HasSubstr("hold"));
  EXPECT_THAT(message_of([&] { all_finite(empty({2}, DType::float32, meta)); }), HasSubstr("all_finite"));
}

TEST_F(RawOps, RefuseIndicesOutOfRange) {
  const Tensor a = floats({1, 2, 3, 4}, {2, 2});
  const auto index = [](std::vector<std::int64_t> values, device::Device device) {
    return from_values(values, {static_cast<std::int64_t>(values.size())}, DType::int64, device);
  };
  EXPECT_THAT(message_of([&] {
                index_select(a, 0, index({0, 2}, cpu));
              }),
              HasSubstr("index_select: index 2 at position 1 is out of range for a dim of size 2"));
  EXPECT_THAT(message_of([&] { index_select(a, 1, index({-1}, cpu)); }), HasSubstr("index -1"));
  EXPECT_THAT(message_of([&] { index_add_(a, 0, index({5}, cpu), floats({1, 2}, {1, 2})); }), HasSubstr("index 5"));
  EXPECT_THAT(message_of([&] {
                index_add_(a, 0, index({0}, cpu), floats({1, 2, 3, 4}, {2, 2}));
              }),
              HasSubstr("index_add_: the value is (2, 2), not (1, 2)"));
  EXPECT_THAT(to_doubles(a), ElementsAre(1, 2, 3, 4));  // nothing was written
  EXPECT_THAT(message_of([&] { index_select(a, 0, floats({1.0}, {1})); }), HasSubstr("the index is float32"));
  EXPECT_THAT(message_of([&] { index_select(select(select(a, 0, 0), 0, 0), 0, index({0}, cpu)); }),
              HasSubstr("index_select"));
}

TEST_F(RawOps, IndexAddRoundsOnce) {
  const Tensor index = from_values(std::vector<std::int64_t>{1, 0, 1, 1}, {4}, DType::int64, cpu);
  const Tensor value = floats({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2});
  const Tensor to = zeros({2, 2}, DType::float32, cpu);
  const auto version = to.storage()->version();
  index_add_(to, 0, index, value);
  EXPECT_THAT(to_doubles(to), ElementsAre(3, 4, 13, 16));
  EXPECT_GT(to.storage()->version(), version);
  // 1 + 2^-9 + 2^-9: bfloat16 loses each summand alone, but not their sum.
  const Tensor narrow = from_values(std::vector<double>{1.0}, {1}, DType::bfloat16, cpu);
  index_add_(narrow, 0, from_values(std::vector<std::int64_t>{0, 0}, {2}, DType::int64, cpu),
             from_values(std::vector<double>{0x1p-8, 0x1p-8}, {2}, DType::bfloat16, cpu));
  EXPECT_EQ(item(narrow), 1.0 + 0x1p-7);
  // Into a strided target: the other elements stay.
  const Tensor matrix = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  index_add_(select(matrix, 1, 1), 0, from_values(std::vector<std::int64_t>{1, 1}, {2}, DType::int64, cpu),
             floats({10, 20}, {2}));
  EXPECT_THAT(to_doubles(matrix), ElementsAre(1, 2, 3, 4, 35, 6));
}

TEST_F(RawOps, InPlaceOperationsBumpTheVersionAndWriteOnlyTheirElements) {
  const Tensor matrix = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor column = select(matrix, 1, 1);
  auto version = matrix.storage()->version();
  const auto bumped = [&] {
    const bool more = matrix.storage()->version() > version;
    version = matrix.storage()->version();
    return more;
  };
  add_(column, floats({10, 20}, {2}));
  EXPECT_TRUE(bumped());
  EXPECT_THAT(to_doubles(matrix), ElementsAre(1, 12, 3, 4, 25, 6));
  add_(column, floats({1}, {}), -2.0);
  EXPECT_TRUE(bumped());
  sub_(column, floats({3}, {1}));
  EXPECT_TRUE(bumped());
  EXPECT_THAT(to_doubles(matrix), ElementsAre(1, 7, 3, 4, 20, 6));
  mul_(column, floats({2, 3}, {2}));
  EXPECT_TRUE(bumped());
  mul_(column, 0.5);
  EXPECT_TRUE(bumped());
  EXPECT_THAT(to_doubles(matrix), ElementsAre(1, 7, 3, 4, 30, 6));
  div_(column, 2.0);
  EXPECT_TRUE(bumped());
  EXPECT_THAT(to_doubles(matrix), ElementsAre(1, 3.5, 3, 4, 15, 6));
  zero_(column);
  EXPECT_TRUE(bumped());
  fill_(select(matrix, 0, 0), 9.0);
  EXPECT_TRUE(bumped());
  copy_(slice(matrix, 1, 2, 3), floats({-1}, {}));
  EXPECT_TRUE(bumped());
  EXPECT_THAT(to_doubles(matrix), ElementsAre(9, 9, -1, 4, 0, -1));
}

TEST_F(RawOps, InPlaceOperationsReadOldValuesOfOverlappingMemory) {
  const Tensor table = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  add_(slice(table, 1, 1, 3), slice(table, 1, 0, 2));  // with gaps in memory
  EXPECT_THAT(to_doubles(table), ElementsAre(1, 3, 5, 4, 9, 11));
  const Tensor square = floats({1, 2, 3, 4}, {2, 2});
  add_(square, square);
  EXPECT_THAT(to_doubles(square), ElementsAre(2, 4, 6, 8));
}

// Element i of both views begins at element 2 i of their types, so that a float64 covers a later float32.
TEST_F(RawOps, CopiesReadOldValuesOfAnotherTypeInTheSameMemory) {
  constexpr std::int64_t count = 100;
  const Tensor memory = zeros({2 * count}, DType::float64, cpu);
  const auto view_as = [&memory](DType dtype) {
    auto impl = std::make_shared<TensorImpl>();
    impl->storage = memory.storage();
    impl->sizes = Dims{count};
    impl->strides = Dims{2};
    impl->dtype = dtype;
    return Tensor(std::move(impl));
  };
  const Tensor from = view_as(DType::float32), to = view_as(DType::float64);
  copy_(from, arange(0, count, 1, DType::float32, cpu));
  copy_(to, from);
  EXPECT_EQ(to_doubles(to), to_doubles(arange(0, count, 1, DType::float64, cpu)));
}

TEST_F(RawOps, InPlaceOperationsRefuseOperandsThatShareSomeElements) {
  const Tensor a = floats({1, 2, 3, 4, 5}, {5}), square = floats({1, 2, 3, 4}, {2, 2});
  const auto refusal = HasSubstr("shares some elements with");
  EXPECT_THAT(message_of([&] { add_(slice(a, 0, 1, 5), slice(a, 0, 0, 4)); }), refusal);
  EXPECT_THAT(message_of([&] { copy_(square, transpose(square, 0, 1)); }), refusal);
  EXPECT_THAT(message_of([&] { sub_(square, select(square, 0, 0)); }), refusal);
  EXPECT_THAT(to_doubles(a), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(to_doubles(square), ElementsAre(1, 2, 3, 4));
}

TEST_F(RawOps, CopyBetweenDevicesWithCastsStridesAndBroadcasts) {
  const Tensor host = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor there = to_device(transpose(host, 0, 1), sim);
  EXPECT_EQ(there.device(), sim);
  EXPECT_THAT(to_doubles(there), ElementsAre(1, 4, 2, 5, 3, 6));
  const Tensor strided = zeros({3, 4}, DType::float64, sim);
  copy_(slice(strided, 1, 1, 3), transpose(host, 0, 1));
  EXPECT_THAT(to_doubles(strided), ElementsAre(0, 1, 4, 0, 0, 2, 5, 0, 0, 3, 6, 0));
  const Tensor back = zeros({2, 3, 2}, DType::bfloat16, cpu);
  copy_(back, there);  // repeated along the first dim
  EXPECT_THAT(to_doubles(back), ElementsAre(1, 4, 2, 5, 3, 6, 1, 4, 2, 5, 3, 6));
  EXPECT_TRUE(to_device(host, cpu).same_as(host));
  EXPECT_TRUE(to_device(host, meta).is_meta());
  EXPECT_THAT(message_of([&] { to_device(empty({2}, DType::float32, meta), cpu); }), HasSubstr("has no values"));
}

TEST_F(RawOps, PinnedCopiesAreOrderedWithLaterWork) {
  const Tensor there = full({1000}, 3.0, DType::float32, sim);
  const Tensor pinned = empty_pinned({1000}, DType::float32, sim);
  device::delay(device::current_stream(sim), 20.0);
  mul_(there, 2.0);
  copy_(pinned, there);
  EXPECT_EQ(item(sum(pinned)), 6000.0);
  const Tensor up = to_device(pinned, sim);
  mul_(pinned, 0.0);
  EXPECT_EQ(item(sum(up)), 6000.0);
}

TEST_F(RawOps, RefuseToReadReleasedStorages) {
  const Tensor a = floats({1, 2}, {2});
  a.storage()->owner = "fc1.weight";
  a.storage()->state = "resharded after forward";
  a.storage()->release();
  EXPECT_THAT(message_of([&] { add(a, 1.0); }),
              testing::AllOf(HasSubstr("fc1.weight"), HasSubstr("resharded after forward")));
}

TEST_F(RawOps, ReturnTheOperandIfNoCopyIsNeeded) {
  const Tensor a = floats({1, 2, 3, 4}, {2, 2});
  EXPECT_TRUE(contiguous(a).same_as(a));
  EXPECT_TRUE(cast(a, DType::float32).same_as(a));
  EXPECT_EQ(reshape(a, {4}).storage(), a.storage());
  EXPECT_EQ(reshape(slice(a, 1, 0, 1), {2}).storage(), a.storage());
  EXPECT_NE(reshape(transpose(a, 0, 1), {4}).storage(), a.storage());
  EXPECT_NE(clone(a).storage(), a.storage());
  EXPECT_THAT(to_doubles(reshape(transpose(a, 0, 1), {-1})), ElementsAre(1, 3, 2, 4));
}

TEST_F(RawOps, SumToUndoesBroadcasting) {
  const Tensor a = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_TRUE(sum_to(a, {2, 3}).same_as(a));
  EXPECT_THAT(to_doubles(sum_to(a, {3})), ElementsAre(5, 7, 9));
  EXPECT_THAT(to_doubles(sum_to(a, {2, 1})), ElementsAre(6, 15));
  EXPECT_EQ(sum_to(a, {1, 1}).num_dims(), 2);
  EXPECT_EQ(item(sum_to(a, {})), 21.0);
}

TEST_F(RawOps, AllFiniteFindsASingleBadElement) {
  for (const device::Device device : {cpu, sim}) {
    const Tensor a = ones({300, 40}, DType::bfloat16, device);
    EXPECT_TRUE(all_finite(a));
    fill_(select(select(a, 0, 299), 0, 39), std::numeric_limits<double>::infinity());
    EXPECT_FALSE(all_finite(a));
    EXPECT_TRUE(all_finite(slice(a, 1, 0, 39)));
  }
  EXPECT_TRUE(all_finite(empty({0}, DType::float32, cpu)));
}

TEST_F(RawOps, CompareAndFindExtremes) {
  const Tensor a = floats({1, 5, 3}, {3}), b = floats({4, 2, 3}, {3});
  EXPECT_THAT(to_doubles(maximum(a, b)), ElementsAre(4, 5, 3));
  EXPECT_THAT(to_doubles(minimum(a, b)), ElementsAre(1, 2, 3));
  EXPECT_THAT(to_doubles(sign(floats({-2, 0, 7}, {3}))), ElementsAre(-1, 0, 1));
  EXPECT_THAT(to_doubles(relu_backward(a, floats({0, 1, -1}, {3}))), ElementsAre(0, 5, 0));
}

TEST_F(RawOps, WorkOnMeta) {
  const Tensor a = empty({2, 3}, DType::float32, meta), w = empty({4, 3}, DType::float32, meta);
  EXPECT_EQ(linear(a, w, nullptr).sizes(), (Dims{2, 4}));
  const auto version = a.storage()->version();
  add_(a, a);
  copy_(a, floats({1, 2, 3}, {3}));
  zero_(a);
  EXPECT_GT(a.storage()->version(), version);
  EXPECT_TRUE(sum(a, {1}, true).is_meta());
  EXPECT_EQ(sum(a, {1}, true).sizes(), (Dims{2, 1}));
}

// 2^24 + 1 - 2^24: float32 sums lose the 1, float64 sums keep it. All products follow the setting of the rank.
TEST_F(RawOps, Float32ProductsAreExactOnRequest) {
  const Tensor row = floats({1, 1, -1}, {1, 3});
  const Tensor x = floats({16777216, 1, 16777216}, {1, 3});
  const auto value = [](const Tensor& t) { return to_doubles(t).at(0); };
  const auto linear_of = [&] { return value(linear(x, row, nullptr)); };
  const auto matmul_of = [&] { return value(matmul(x, transpose(row, 0, 1))); };
  const auto into_of = [&] {
    const Tensor out = empty({1, 1}, DType::float32, cpu);
    matmul_into(out, x, transpose(row, 0, 1));
    return value(out);
  };
  EXPECT_FALSE(are_float32_products_exact());
  set_float32_products_exact(true);
  EXPECT_EQ(linear_of(), 1.0);
  EXPECT_EQ(matmul_of(), 1.0);
  EXPECT_EQ(into_of(), 1.0);
  EXPECT_EQ(linear(x, row, nullptr).dtype(), DType::float32);
  set_float32_products_exact(false);
  EXPECT_FALSE(are_float32_products_exact());
}

TEST(RawProducts, AreNotExactOutsideOfARank) { EXPECT_FALSE(are_float32_products_exact()); }

// If the heads of a row are adjacent in the queries, they are adjacent in the result, and transposing it is a view.
TEST_F(RawOps, AttentionKeepsTheStridesOfItsQueries) {
  const Dims rows_first = {2, 5, 3, 4};
  const auto heads = [&](double seed) {
    std::vector<double> values;
    for (int i = 0; i < 120; ++i) values.push_back(std::sin(seed + i));
    return transpose(floats(values, rows_first), 1, 2);
  };
  const Tensor q = heads(1), k = heads(2), v = heads(3), grad = heads(4);
  const AttentionResult laid = attention(q, k, v, true, 0.0);
  EXPECT_TRUE(transpose(laid.result, 1, 2).is_contiguous());
  const AttentionResult plain = attention(contiguous(q), contiguous(k), contiguous(v), true, 0.0);
  EXPECT_TRUE(plain.result.is_contiguous());
  EXPECT_EQ(to_doubles(laid.result), to_doubles(plain.result));
  const AttentionGradients strided = attention_backward(grad, q, k, v, laid.probabilities, {}, true, 0.0);
  const AttentionGradients contiguous_gradients = attention_backward(contiguous(grad), contiguous(q), contiguous(k),
                                                                     contiguous(v), plain.probabilities, {}, true, 0.0);
  for (const auto member : {&AttentionGradients::q, &AttentionGradients::k, &AttentionGradients::v}) {
    EXPECT_TRUE(transpose(strided.*member, 1, 2).is_contiguous());
    EXPECT_EQ(to_doubles(strided.*member), to_doubles(contiguous_gradients.*member));
  }
}

}  // namespace
}  // namespace lockstep::raw
