#include "harness/run/values/evaluate.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/nn/build.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/run/values/test_expressions.hpp"

namespace lockstep::run {
namespace {

using ::testing::HasSubstr;

class Evaluate : public testing_support::Expressions {
 protected:
  Evaluate() {
    session_.variables["float32"] = Value(DType::float32);
    session_.variables["bfloat16"] = Value(DType::bfloat16);
    session_.variables["rank"] = Value(0);
    frame_->names["n"] = Value(5);
    frame_->names["xs"] = Value::list({Value(1), Value(2), Value(3)});
    frame_->names["none_yet"] = Value();
  }
};

TEST_F(Evaluate, FollowsThePrecedenceOfPython) {
  EXPECT_EQ(text_of("2 + 3 * 4 ** 2"), "50");
  EXPECT_EQ(text_of("-2 ** 2"), "-4");
  EXPECT_EQ(text_of("2 ** 3 ** 2"), "512");
  EXPECT_EQ(text_of("-7 // 2"), "-4");
  EXPECT_EQ(text_of("-7 % 3"), "2");
  EXPECT_EQ(text_of("7 / 2"), "3.5");
  EXPECT_EQ(text_of("not 1 == 2 and false or true"), "true");
  EXPECT_EQ(text_of("1 if n > 4 else 2"), "1");
  EXPECT_EQ(text_of("2 ** -1"), "0.5");
  EXPECT_EQ(text_of("-7.5 // 2"), "-4.0");
  EXPECT_EQ(text_of("[1.0 // 0.1, -5.0 // inf, abs(-0.0)]"), "[9.0,-1.0,0.0]");
  EXPECT_EQ(text_of("-7.5 % 2"), "0.5");
}

TEST_F(Evaluate, ThrowsOnOverflow) {
  EXPECT_THAT(error("9223372036854775807 + 1"), HasSubstr("does not fit in a 64-bit integer"));
  EXPECT_THAT(error("3 ** 41"), HasSubstr("does not fit"));
  EXPECT_THAT(error("4611686018427387904 * 2"), HasSubstr("does not fit"));
  EXPECT_THAT(error("-9223372036854775807 - 2"), HasSubstr("does not fit"));
  EXPECT_EQ(text_of("3 ** 39"), "4052555153018976267");
  EXPECT_EQ(text_of("2 ** 62"), "4611686018427387904");
  EXPECT_THAT(error("1 // 0"), HasSubstr("no value"));
  EXPECT_THAT(error("0 ** -1"), HasSubstr("no value"));
  EXPECT_THAT(error("0.0 ** -1"), HasSubstr("no value"));
  EXPECT_THAT(error("1.0 / 0"), HasSubstr("no value"));
}

TEST_F(Evaluate, ComparesNumbersByValue) {
  EXPECT_EQ(text_of("1 == 1.0"), "true");
  EXPECT_EQ(text_of("2 != false"), "true");
  EXPECT_EQ(text_of("1 == true"), "false");
  EXPECT_EQ(text_of("0 == false"), "false");
  EXPECT_EQ(text_of("'1' == 1"), "false");
  EXPECT_EQ(text_of("9007199254740993 == 9007199254740992.0"), "false");
  EXPECT_EQ(text_of("[1, [2, 3]] == [1.0, [2, 3]]"), "true");
  EXPECT_EQ(text_of("{'a': 1, 'b': 2} == {'b': 2, 'a': 1}"), "true");
  EXPECT_EQ(text_of("none_yet == none"), "true");
  EXPECT_EQ(text_of("float32 == 'float32'"), "false");
  EXPECT_THAT(error("'a' < 1"), HasSubstr("no order"));
  EXPECT_EQ(text_of("'a' < 'b'"), "true");
  EXPECT_EQ(text_of("inf > 9223372036854775807"), "true");
  EXPECT_EQ(text_of("9223372036854775807 < 9223372036854775808.0"), "true");
  EXPECT_EQ(text_of("9223372036854775808.0 <= 9223372036854775807"), "false");
  EXPECT_EQ(text_of("9007199254740993 > 9007199254740992.0"), "true");
  EXPECT_EQ(text_of("[2 < 2.5, -2 > -2.5, 3 <= 3.0, 2.5 < 3]"), "[true,true,true,true]");
}

TEST_F(Evaluate, ComparesTensorsWithNoneOnly) {
  EXPECT_EQ(text_of("zeros(2) != none"), "true");
  EXPECT_EQ(text_of("none == zeros(2)"), "false");
  EXPECT_THAT(error("zeros(2) == 0"), HasSubstr("compared with none only"));
  EXPECT_THAT(error("zeros(2) < 1"), HasSubstr("no order"));
}

TEST_F(Evaluate, EvaluatesOperandsOnlyWhenNeeded) {
  EXPECT_EQ(text_of("false and 1 // 0 == 1"), "false");
  EXPECT_EQ(text_of("true or 1 // 0 == 1"), "true");
  EXPECT_EQ(text_of("1 if true else 1 // 0"), "1");
  EXPECT_THAT(error("1 and true"), HasSubstr("a condition must be a boolean"));
  EXPECT_THAT(error("true and n"), HasSubstr("a condition must be a boolean"));
}

TEST_F(Evaluate, ComprehensionsDoNotLeakNames) {
  EXPECT_EQ(text_of("[n * 2 for n in xs if n != 2]"), "[2,6]");
  EXPECT_EQ(text_of("n"), "5");
  EXPECT_EQ(text_of("{text(x): x * x for x in xs}"), "{1:1,2:4,3:9}");
  EXPECT_EQ(text_of("[[a + b for a in xs] for b in [10, 20]]"), "[[11,12,13],[21,22,23]]");
  EXPECT_EQ(text_of("[a * b for a, b in zip(xs, [4, 5, 6])]"), "[4,10,18]");
  EXPECT_THAT(error("[a for a, b in xs]"), HasSubstr("must be a list"));
}

TEST_F(Evaluate, IndexesAndSlicesAsInPython) {
  EXPECT_EQ(text_of("xs[-1]"), "3");
  EXPECT_EQ(text_of("xs[1:9]"), "[2,3]");
  EXPECT_EQ(text_of("xs[:-1]"), "[1,2]");
  EXPECT_EQ(text_of("'abc'[1]"), "b");
  EXPECT_EQ(text_of("len('d\xc3\xa9j\xc3\xa0')"), "4");
  EXPECT_EQ(text_of("'d\xc3\xa9j\xc3\xa0'[-1]"), "\xc3\xa0");
  EXPECT_EQ(text_of("'d\xc3\xa9j\xc3\xa0'[1:3]"), "\xc3\xa9j");
  EXPECT_THAT(error("'\xc3\xa9'[1]"), HasSubstr("index 1 is out of range: the text has 1"));
  EXPECT_THAT(error("xs[3]"), HasSubstr("out of range"));
  EXPECT_EQ(text_of("{'a': 1, 2: 'b'}[2]"), "b");
  EXPECT_THAT(error("{'a': 1}['b']"), HasSubstr("no key 'b'"));
  EXPECT_EQ(text_of("{'a': {'b': 7}}.a.b"), "7");
  EXPECT_EQ(text_of("arange(10)[2:5].shape"), "[3]");
  EXPECT_EQ(text_of("item(arange(10)[-2])"), "8");
  EXPECT_EQ(text_of("item(arange(10)[tensor([4, 2])][1])"), "2");
}

TEST_F(Evaluate, EvaluatesPlainFunctions) {
  EXPECT_EQ(text_of("[min(3, 1.5), max([1, 7]), sum([1, 2.5]), abs(-3), round(2.5), floor(-0.5), ceil(0.5)]"),
            "[1.5,7,3.5,3,2,-1,1]");
  EXPECT_EQ(text_of("range(2, 8, 3) + range(2)"), "[2,5,0,1]");
  EXPECT_EQ(text_of("sorted(['b', 'a'])"), "[a,b]");
  EXPECT_EQ(text_of("keys(put({'a': 1}, 'b', 2))"), "[a,b]");
  EXPECT_EQ(text_of("values(put({'a': 1}, 'a', 2))"), "[2]");
  EXPECT_EQ(text_of("[has({'a': 1}, 'a'), count([true, false, true]), int('12'), int(-1.7), len('abc')]"),
            "[true,2,12,-1,3]");
  EXPECT_EQ(text_of("[starts_with('abc', 'a'), ends_with('abc', 'bc'), matches('layer.7', 'l*.[0-9]')]"),
            "[true,true,true]");
  EXPECT_EQ(text_of("[all([true, 1 == 1]), any([false])]"), "[true,false]");
  EXPECT_THAT(error("all([])"), HasSubstr("empty list"));
  EXPECT_THAT(error("zip([1], [1, 2])"), HasSubstr("different length"));
  EXPECT_THAT(error("sqrt(-1)"), HasSubstr("sqrt"));
  EXPECT_EQ(text_of("3 in xs"), "true");
  EXPECT_EQ(text_of("'a' in {'a': 1}"), "true");
  EXPECT_EQ(text_of("[0] * 3 + [1]"), "[0,0,0,1]");
  EXPECT_THAT(error("[0] * 10001"), HasSubstr("10000"));
}

TEST_F(Evaluate, EvaluatesTensorAttributesAndArithmetic) {
  EXPECT_EQ(text_of("[(ones(2, 3) * 2 + 1).shape, item(sum(ones(2, 3) * 2 + 1)), ones(2).numel, ones(2).bytes]"),
            "[[2,3],18.0,2,8]");
  EXPECT_EQ(text_of("[to(ones(2), bfloat16).bytes]"), "[4]");
  EXPECT_EQ(text_of("item(1 - full([1], 0.25)[0])"), "0.75");
  EXPECT_EQ(text_of("item(sum(tensor([[1.0, 2], [3, 4]]) @ tensor([[1.0], [1.0]])))").substr(0, 2), "10");
  frame_->names["t"] = value("zeros(3)");
  EXPECT_EQ(text_of("t.storage == t[0:2].storage"), "true");
  EXPECT_EQ(text_of("t.storage == clone(t).storage"), "false");
  EXPECT_EQ(text_of("t.grad == none"), "true");
  EXPECT_EQ(text_of("[t.device, t.sharded, t.requires_grad]"), "[cpu,false,false]");
  EXPECT_THAT(error("t.shpae"), HasSubstr("did you mean `shape`"));
  EXPECT_THAT(error("t.mesh"), HasSubstr("sharded"));
}

TEST_F(Evaluate, EvaluatesLayersAndLosses) {
  const auto number = [this](const std::string& text) { return value(text).as_number("it"); };
  EXPECT_NEAR(number("item(sum(gelu(tensor([-1.0, 0.0, 2.0]))))"), 1.7958444, 1e-6);  // -0.1586553 + 1.9544997
  EXPECT_NEAR(number("item(softmax(tensor([0.0, log(3)]))[1])"), 0.75, 1e-7);
  EXPECT_NEAR(number("item(softmax(tensor([[0.0, 1.0], [log(3), 1.0]]), 0)[1][0])"), 0.75, 1e-7);
  EXPECT_NEAR(number("item(cross_entropy(tensor([[0.0, log(3)], [0.0, log(3)]]), tensor([1, 0])))"),
              (std::log(4.0 / 3) + std::log(4.0)) / 2, 1e-6);
  const std::string rows = "tensor([[0.0, log(3)], [0.0, log(3)], [0.0, 0.0]]), tensor([1, 0, 1])";  // 3/4, 1/4, 1/2
  const double all = std::log(4.0 / 3) + std::log(4.0) + std::log(2.0);
  EXPECT_NEAR(number("item(cross_entropy(" + rows + ", reduction='sum'))"), all, 1e-6);
  EXPECT_NEAR(number("item(cross_entropy(" + rows + ", reduction=none)[2])"), std::log(2.0), 1e-6);
  EXPECT_NEAR(number("item(cross_entropy(" + rows + ", weight=tensor([2.0, 0.5])))"),
              (all / 2 + 1.5 * std::log(4.0)) / 3, 1e-6);
  EXPECT_NEAR(number("item(cross_entropy(" + rows + ", ignore_index=0))"), (all - std::log(4.0)) / 2, 1e-6);
  EXPECT_THAT(error("cross_entropy(" + rows + ", reduction='max')"), HasSubstr("reduction is 'max'"));
  EXPECT_EQ(number("item(sum(dropout(ones(7), 0)))"), 7.0);
  EXPECT_THAT(error("dropout(ones(7), 2)"), HasSubstr("a probability of 2"));
}

TEST_F(Evaluate, ThrowsUnboundNameForNamesWithoutValue) {
  EXPECT_THROW(value("missing + 1"), UnboundName);
  EXPECT_THROW(value("missing(1)"), UnboundName);
  EXPECT_THAT(error("n(1)"), HasSubstr("cannot be called"));
}

TEST_F(Evaluate, PrefersAModuleToAFunctionOfTheSameName) {
  nn::BuildOptions options{DType::float32, session_.device};
  frame_->names["sum"] = Value(nn::build("ReLU", {}, options));
  EXPECT_EQ(text_of("sum(full([2], -1.0)).shape"), "[2]");
  frame_->names["max"] = Value(3);
  EXPECT_EQ(text_of("max(1, 2)"), "2");
}

class Paths : public Evaluate {
 protected:
  Paths() {
    const nn::BuildOptions options{DType::float32, session_.device};
    const auto linear = [&] { return nn::build("Linear", {{std::int64_t{2}, std::int64_t{2}}, {}}, options); };
    shared_ = linear();
    const nn::ModulePtr inner = nn::build("Sequential", {}, options, {linear(), shared_});
    frame_->names["test"] = Value(nn::build("Sequential", {}, options, {inner, linear(), shared_}));
  }
  std::vector<std::string> modules(const std::string& path) {
    std::vector<std::string> names;
    for (const ModuleMatch& at : find_modules(path, Scope{frame_})) names.push_back(at.path);
    return names;
  }
  std::vector<std::string> parameters(const std::string& path) {
    std::vector<std::string> names;
    for (const TensorMatch& at : find_parameters(path, Scope{frame_})) names.push_back(at.path);
    return names;
  }
  using Texts = std::vector<std::string>;
  nn::ModulePtr shared_;
};

TEST_F(Paths, MatchEachObjectOnceInRegistrationOrder) {
  EXPECT_EQ(modules("test"), (Texts{"test"}));
  EXPECT_EQ(modules("test.*"), (Texts{"test.0", "test.1"}));
  EXPECT_EQ(modules("test.0.*"), (Texts{"test.0.0", "test.0.1"}));
  EXPECT_EQ(modules("test.**"), (Texts{"test", "test.0", "test.0.0", "test.0.1", "test.1"}));
  EXPECT_EQ(modules("test.[12]"), (Texts{"test.1"}));
  EXPECT_EQ(modules("test.2"), (Texts{"test.2"}));
  EXPECT_EQ(parameters("test.**.weight"), (Texts{"test.0.0.weight", "test.0.1.weight", "test.1.weight"}));
  EXPECT_EQ(parameters("test.2.bias"), (Texts{"test.2.bias"}));
  EXPECT_EQ(parameters("test.?.weight"), (Texts{"test.1.weight", "test.2.weight"}));
}

TEST_F(Paths, ThrowWhenNothingMatches) {
  EXPECT_THROW(modules("test.9"), Error);
  EXPECT_THROW(modules("test.*.*.*"), Error);
  EXPECT_THROW(parameters("test.weights"), Error);
  EXPECT_THROW(modules("other.*"), UnboundName);
}

TEST(Glob, MatchesLikeFileNames) {
  EXPECT_TRUE(glob_matches("w[qkv]", "wk"));
  EXPECT_FALSE(glob_matches("w[qkv]", "wo"));
  EXPECT_TRUE(glob_matches("w[!o]", "wq"));
  EXPECT_TRUE(glob_matches("*a*b", "xaybab"));
  EXPECT_FALSE(glob_matches("*a*b", "xaybac"));
  EXPECT_TRUE(glob_matches("l[0-3]", "l2"));
  EXPECT_FALSE(glob_matches("?", ""));
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_THROW(glob_matches("[a", "a"), Error);
}

}  // namespace
}  // namespace lockstep::run
