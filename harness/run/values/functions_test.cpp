// The functions that choose, move and combine the elements of tensors: their arguments, and errors that name them.
#include "harness/run/values/functions.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/autograd.hpp"
#include "harness/run/values/test_expressions.hpp"

namespace lockstep::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Functions : public testing_support::Expressions {
 protected:
  Functions() {
    for (const DType type :
         {DType::float32, DType::float64, DType::bfloat16, DType::int64, DType::int32, DType::boolean})
      session_.variables[std::string(name_of(type))] = Value(type);
    frame_->names["x"] = value("tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 6.0]])");
    frame_->names["n"] = value("tensor([3, -1, 2])");
  }
  std::vector<double> numbers(const std::string& text) { return to_doubles(value(text).as_tensor("it")); }
};

TEST_F(Functions, CompareTensorsWithTensorsAndNumbers) {
  EXPECT_THAT(numbers("eq(n, tensor([3, 1, 2]))"), ElementsAre(1, 0, 1));
  EXPECT_THAT(numbers("ne(n, 2)"), ElementsAre(1, 1, 0));
  EXPECT_THAT(numbers("lt(n, 2.5)"), ElementsAre(0, 1, 1));
  EXPECT_THAT(numbers("le(n, 2)"), ElementsAre(0, 1, 1));
  EXPECT_THAT(numbers("gt(n, -1)"), ElementsAre(1, 0, 1));
  EXPECT_THAT(numbers("ge(x, tensor([[1.0, 6.0, 3.0]]))"), ElementsAre(1, 0, 1, 1, 0, 1));
  EXPECT_EQ(text_of("eq(x, x).dtype"), "bool");
  EXPECT_THAT(numbers("eq(tensor([true, false]), true)"), ElementsAre(1, 0));
  // A number has the type of a floating-point tensor, and an integer that of an integer tensor.
  EXPECT_THAT(numbers("eq(tensor([0.1], dtype=bfloat16), 0.1)"), ElementsAre(1));
  EXPECT_THAT(numbers("lt(tensor([5], dtype=int32), 2147483647)"), ElementsAre(1));
  EXPECT_THAT(error("lt(tensor([5], dtype=int32), 3000000000)"),
              HasSubstr("3000000000 does not fit int32, the type of int32 (1,)"));
  EXPECT_THAT(numbers("eq(tensor([9007199254740993]), 9007199254740992)"), ElementsAre(0));
  EXPECT_THAT(error("eq(x, 'a')"), HasSubstr("other must be"));
  EXPECT_THAT(error("eq(x, zeros(4))"), HasSubstr("eq: "));
}

TEST_F(Functions, RefuseDimsThatATensorWithoutDimsLacks) {
  EXPECT_THAT(numbers("softmax(tensor(1.0), 0)"), ElementsAre(1));
  EXPECT_THAT(error("softmax(tensor(1.0), 3)"), HasSubstr("dim 3 is out of range"));
  EXPECT_THAT(error("log_softmax(tensor(1.0), 1)"), HasSubstr("dim 1 is out of range"));
  EXPECT_EQ(text_of("flatten(tensor(1.0), -1, 0).shape"), "[1]");
  EXPECT_THAT(error("flatten(tensor(1.0), 4, 7)"), HasSubstr("dim 4 is out of range"));
}

TEST_F(Functions, ChooseByAConditionAndKeepTheTypeBesideNumbers) {
  EXPECT_THAT(numbers("where(gt(n, 0), n, 0)"), ElementsAre(3, 0, 2));
  EXPECT_THAT(numbers("where(gt(n, 0), 0.5, n)"), ElementsAre(0.5, -1, 0.5));
  EXPECT_EQ(text_of("[where(gt(n, 0), n, 0).dtype, where(gt(n, 0), n, 0.5).dtype]"), "[int64,float32]");
  EXPECT_EQ(text_of("where(gt(x, 2), to(x, bfloat16), 0.5).dtype"), "bfloat16");
  EXPECT_EQ(
      text_of("[where(gt(n, 0), 1, 0).dtype, where(gt(n, 0), 1.0, 0.0).dtype, where(gt(n, 0), true, false).dtype]"),
      "[int64,float32,bool]");
  EXPECT_THAT(error("where(n, n, n)"), AllOf(HasSubstr("where: the condition is int64"), HasSubstr("give bool")));
}

TEST_F(Functions, FindExtremesAlongADim) {
  EXPECT_THAT(numbers("amax(x, 1)"), ElementsAre(5, 6));
  EXPECT_THAT(numbers("amin(x, -2)"), ElementsAre(1, 2, 3));
  EXPECT_THAT(numbers("argmax(x, dim=0)"), ElementsAre(1, 0, 1));
  EXPECT_THAT(numbers("argmax(tensor([2, 7, 7]), 0)"), ElementsAre(1));
  EXPECT_EQ(text_of("[amax(x, 1, keepdim=true).shape, argmax(x, 0, keepdim=true).shape, argmax(x, 0).dtype]"),
            "[[2,1],[1,3],int64]");
  EXPECT_THAT(error("amax(x, 2)"), HasSubstr("amax"));
  EXPECT_THAT(error("amax(x, 0, keepdim=1)"), HasSubstr("keepdim must be"));
}

TEST_F(Functions, ChangeTensorsInPlaceAndReturnThem) {
  frame_->names["y"] = value("clone(x)");
  EXPECT_EQ(text_of("add_(y, 1).storage == y.storage"), "true");
  EXPECT_THAT(numbers("y"), ElementsAre(2, 6, 4, 5, 3, 7));
  EXPECT_THAT(numbers("add_(y, tensor([1.0, 2.0, 3.0]), alpha=-2)"), ElementsAre(0, 2, -2, 3, -1, 1));
  EXPECT_THAT(numbers("relu_(y[0])"), ElementsAre(0, 2, 0));
  EXPECT_THAT(numbers("sub_(mul_(y, 4), 2)"), ElementsAre(-2, 6, -2, 10, -6, 2));
  EXPECT_THAT(numbers("div_(select(y, 1, 0), tensor([2.0, 5.0]))"), ElementsAre(-1, 2));
  EXPECT_THAT(numbers("copy_(y[1], tensor([7]))"), ElementsAre(7, 7, 7));
  EXPECT_THAT(numbers("fill_(zero_(y)[0:1], 3)"), ElementsAre(3, 3, 3));
  EXPECT_THAT(numbers("y"), ElementsAre(3, 3, 3, 0, 0, 0));
  EXPECT_THAT(numbers("add_(clone(n), true)"), ElementsAre(4, 0, 3));
  EXPECT_THAT(error("add_(clone(n), 1.0)"),
              AllOf(HasSubstr("add_(...): a floating-point number into int64"), HasSubstr("cast the target")));
  EXPECT_THAT(error("add_(gt(n, 0), 1)"), HasSubstr("add_: an integer value into bool"));
  EXPECT_THAT(error("mul_(x, 'a')"), HasSubstr("value must be"));
}

TEST_F(Functions, SelectPositions) {
  EXPECT_THAT(numbers("index_select(x, 1, tensor([2, 2, 0]))"), ElementsAre(3, 3, 1, 6, 6, 4));
  EXPECT_THAT(numbers("select(x, 1, -1)"), ElementsAre(3, 6));
  EXPECT_THAT(numbers("narrow(x, 1, 1, 2)"), ElementsAre(5, 3, 2, 6));
  EXPECT_THAT(numbers("narrow(x, -1, -2, 1)"), ElementsAre(5, 2));
  EXPECT_THAT(numbers("embedding(tensor([[1], [0]]), x)"), ElementsAre(4, 2, 6, 1, 5, 3));
  EXPECT_THAT(error("narrow(x, 1, 2, 2)"),
              AllOf(HasSubstr("narrow(...): start 2 and length 2 of dim 1, which has 3 positions"),
                    HasSubstr("give a range within the dim")));
  EXPECT_THAT(error("narrow(x, 1, 0, -1)"), HasSubstr("length -1"));
  EXPECT_THAT(error("select(x, 1, 3)"), HasSubstr("select"));
  EXPECT_THAT(error("index_select(x, 1, tensor([3]))"), HasSubstr("index_select"));
  EXPECT_THAT(error("embedding(tensor([2]), x)"), HasSubstr("embedding"));
}

TEST_F(Functions, SplitAndJoin) {
  EXPECT_EQ(text_of("[part.shape for part in split(x, 2, 1)]"), "[[2,2],[2,1]]");
  EXPECT_EQ(text_of("[part.shape for part in split(x, 2)]"), "[[2,3]]");
  EXPECT_EQ(text_of("[part.shape for part in chunk(arange(5), 4)]"), "[[2],[2],[1]]");
  EXPECT_EQ(text_of("split(x, 2, 1)[1].storage == x.storage"), "true");
  EXPECT_EQ(text_of("[stack([x, x]).shape, stack([x, x], 1).shape, stack([x, x], -1).shape]"),
            "[[2,2,3],[2,2,3],[2,3,2]]");
  EXPECT_THAT(error("split(x, 0)"), HasSubstr("a size of at least 1"));
  EXPECT_EQ(text_of("[[part.shape for part in chunk(zeros(2, 0), 3, 1)], len(split(zeros(0), 2))]"),
            "[[[2,0],[2,0],[2,0]],1]");
  EXPECT_THAT(error("chunk(zeros(0), 20000)"), HasSubstr("give at most 10000"));
  EXPECT_THAT(error("chunk(x, 0)"), HasSubstr("a count of at least 1"));
  EXPECT_THAT(error("stack([x, n])"), HasSubstr("give tensors of the same sizes"));
  EXPECT_THAT(error("stack([])"),
              AllOf(HasSubstr("stack(...): `tensors` is an empty list"), HasSubstr("at least one")));
  EXPECT_THAT(error("stack([x, 1])"), HasSubstr("an item of `tensors` must be"));
}

TEST_F(Functions, ChangeShapes) {
  EXPECT_EQ(
      text_of("[view(x, 3, -1).shape, permute(zeros(2, 3, 4), [2, 0, 1]).shape, expand(zeros(3, 1), 2, -1, 4).shape]"),
      "[[3,2],[4,2,3],[2,3,4]]");
  EXPECT_EQ(
      text_of("[unsqueeze(x, 0).shape, unsqueeze(x, -1).shape, squeeze(zeros(2, 1), 1).shape, squeeze(x, 0).shape]"),
      "[[1,2,3],[2,3,1],[2],[2,3]]");
  EXPECT_THAT(numbers("contiguous(transpose(x, 0, 1))"), ElementsAre(1, 4, 5, 2, 3, 6));
  EXPECT_EQ(text_of("[contiguous(x).storage == x.storage, contiguous(transpose(x, 0, 1)).storage == x.storage]"),
            "[true,false]");
  EXPECT_THAT(error("view(transpose(x, 0, 1), 6)"), HasSubstr("view"));
  EXPECT_THAT(error("permute(x, [0, 0])"), HasSubstr("name each of the 2 dims once"));
  EXPECT_THAT(error("expand(x, 2, 4)"), HasSubstr("only sizes of 1 can be expanded"));
  EXPECT_THAT(error("unsqueeze(x, 4)"), HasSubstr("unsqueeze"));
}

TEST_F(Functions, ReduceOverSeveralDims) {
  EXPECT_THAT(numbers("sum(x, [0, 1])"), ElementsAre(21));
  EXPECT_THAT(numbers("mean(x, [-1], keepdim=true)"), ElementsAre(3, 4));
  EXPECT_EQ(text_of("[sum(x, 0, keepdim=true).shape, mean(x, keepdim=true).shape, sum(x, []).shape]"),
            "[[1,3],[1,1],[]]");
  EXPECT_THAT(error("sum(x, [0, 0])"), HasSubstr("sum"));
  EXPECT_THAT(error("mean(x, 2)"), HasSubstr("mean"));
}

TEST_F(Functions, ComputeLayersFromWeights) {
  EXPECT_THAT(numbers("log(tensor([1.0]))"), ElementsAre(0));
  EXPECT_THAT(error("log(0)"), HasSubstr("x is 0; it must be greater than 0"));
  EXPECT_THAT(numbers("tanh(zeros(1)) + sigmoid(zeros(1))"), ElementsAre(0.5));
  EXPECT_NEAR(numbers("log_softmax(tensor([[0.0, 0.0], [0.0, 0.0]]), 0)")[0], -std::log(2.0), 1e-6);
  EXPECT_THAT(numbers("linear(x, tensor([[1.0, 0.0, 2.0]]), tensor([0.5]))"), ElementsAre(7.5, 16.5));
  EXPECT_THAT(numbers("linear(x, tensor([[1.0, 0.0, 2.0]]), none)"), ElementsAre(7, 16));
  EXPECT_THAT(numbers("conv2d(ones(1, 1, 2, 2), ones(1, 1, 2, 2), padding=[0, 1])"), ElementsAre(2, 4, 2));
  EXPECT_EQ(text_of("conv2d(ones(1, 1, 5, 5), ones(1, 1, 2, 2), stride=[2, 3]).shape"), "[1,1,2,2]");
  EXPECT_THAT(numbers("attention(ones(1, 2), ones(3, 2), tensor([[1.0], [2.0], [6.0]]))"), ElementsAre(3));
  EXPECT_THAT(numbers("attention(ones(1, 2), ones(3, 2), tensor([[1.0], [2.0], [6.0]]), is_causal=true)"),
              ElementsAre(1));
  EXPECT_THAT(numbers("attention(ones(1, 2), ones(3, 2), ones(3, 1), attn_mask=tensor([[false, false, false]]))"),
              ElementsAre(0));
  EXPECT_THAT(error("conv2d(ones(1, 1, 2, 2), ones(1, 1, 2, 2), stride=[1])"),
              AllOf(HasSubstr("stride is (1,)"), HasSubstr("give an integer, or [height, width]")));
}

TEST_F(Functions, NormalizeTheLastDimsAndChannels) {
  EXPECT_NEAR(numbers("layer_norm(tensor([[1.0, 3.0]]), 2, eps=0)")[1], 1.0, 1e-6);
  EXPECT_NEAR(numbers("rms_norm(tensor([[3.0, 3.0]]), [2], tensor([1.0, 2.0]), eps=0)")[1], 2.0, 1e-6);
  frame_->names["mean"] = value("zeros(1)");
  frame_->names["variance"] = value("ones(1)");
  EXPECT_THAT(numbers("batch_norm(tensor([[4.0], [8.0]]), mean, variance, eps=0)"), ElementsAre(4, 8));
  EXPECT_NEAR(numbers("batch_norm(tensor([[4.0], [8.0]]), mean, variance, training=true, momentum=0.5, eps=0)")[1], 1.0,
              1e-6);
  EXPECT_THAT(numbers("mean"), ElementsAre(3));        // halfway to 6
  EXPECT_THAT(numbers("variance"), ElementsAre(4.5));  // halfway to 8
  EXPECT_THAT(error("layer_norm(x, 2)"),
              AllOf(HasSubstr("layer_norm(...): normalized_shape is (2,) and x is float32 (2, 3)"),
                    HasSubstr("give the sizes of the last dims of x")));
  EXPECT_THAT(error("rms_norm(x, [])"), HasSubstr("normalized_shape is ()"));
  EXPECT_THAT(error("batch_norm(x, none, none)"), HasSubstr("evaluation without running statistics"));
}

TEST_F(Functions, GiveGradients) {
  frame_->names["w"] = value("requires_grad(clone(x))");
  backward({value("sum(where(gt(w, 2.5), w * 3, tanh(w * 0)) ) + sum(stack(split(w, 1, 1), 0))").as_tensor("loss")});
  EXPECT_THAT(to_doubles(grad(value("w").as_tensor("w"))), ElementsAre(1, 4, 4, 4, 1, 4));
}

}  // namespace
}  // namespace lockstep::run
