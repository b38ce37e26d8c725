#include "harness/scenario/expression.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::scenario {
namespace {

using ::testing::HasSubstr;

ExprPtr parse(const std::string& text) { return parse_expression(text, Place{"a.yaml", 3, 10}); }

// The expression with parentheses around every operation.
std::string grouped(const Expr& e) {
  const auto child = [&](std::size_t i) { return grouped(*e.children[i]); };
  if (e.kind == ExprKind::binary) return str("(", child(0), " ", name_of(e.op), " ", child(1), ")");
  if (e.kind == ExprKind::unary) return str("(", name_of(e.op), " ", child(0), ")");
  if (e.kind == ExprKind::conditional) return str("(", child(0), " if ", child(1), " else ", child(2), ")");
  return to_text(e);
}
std::string grouped(const std::string& text) { return grouped(*parse(text)); }

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const ScenarioError& error) {
    return error.message();
  }
  return "none";
}

TEST(Expression, BindsOperatorsAsPython) {
  EXPECT_EQ(grouped("a + b * c"), "(a + (b * c))");
  EXPECT_EQ(grouped("a - b - c"), "((a - b) - c)");
  EXPECT_EQ(grouped("a ** b ** c"), "(a ** (b ** c))");
  EXPECT_EQ(grouped("-a ** b"), "(- (a ** b))");
  EXPECT_EQ(grouped("2 ** -1"), "(2 ** (- 1))");
  EXPECT_EQ(grouped("a // b % c @ d"), "(((a // b) % c) @ d)");
  EXPECT_EQ(grouped("a + 1 == b * 2"), "((a + 1) == (b * 2))");
  EXPECT_EQ(grouped("not a == b"), "(not (a == b))");
  EXPECT_EQ(grouped("not a and b or c"), "(((not a) and b) or c)");
  EXPECT_EQ(grouped("a if b else c if d else e"), "(a if b else (c if d else e))");
  EXPECT_EQ(grouped("a or b if c or d else e"), "((a or b) if (c or d) else e)");
  EXPECT_EQ(grouped("x in [1, 2] and y"), "((x in [1, 2]) and y)");
  EXPECT_EQ(grouped("-x.y[0]"), "(- x.y[0])");
}

TEST(Expression, ParsesEveryForm) {
  const ExprPtr call = parse("f.g(x, [1][0], key=y, other=none)");
  ASSERT_EQ(call->kind, ExprKind::call);
  EXPECT_EQ(call->num_positional(), 2u);
  EXPECT_EQ(call->names, (std::vector<std::string>{"key", "other"}));
  EXPECT_EQ(call->positional(1).kind, ExprKind::index);
  EXPECT_EQ(call->keyword(0).name, "y");
  EXPECT_TRUE(call->keyword(1).value.is_none());
  EXPECT_EQ(call->children[0]->kind, ExprKind::attribute);

  EXPECT_EQ(parse("sum(x)")->function, Function::sum);
  EXPECT_EQ(parse("model(x)")->function, Function::none);

  const ExprPtr numbered = parse("test.0.1.weight");
  EXPECT_EQ(numbered->name, "weight");
  EXPECT_EQ(numbered->children[0]->name, "1");
  EXPECT_EQ(numbered->children[0]->children[0]->name, "0");

  const ExprPtr each = parse("{k: v for k, v in pairs if v > 0}");
  ASSERT_EQ(each->kind, ExprKind::map_of_each);
  EXPECT_EQ(each->names, (std::vector<std::string>{"k", "v"}));
  ASSERT_EQ(each->children.size(), 4u);
  EXPECT_EQ(each->children[3]->op, Op::greater);
  EXPECT_EQ(parse("[x for x in xs]")->children[2], nullptr);

  const ExprPtr slice = parse("x[:n]");
  ASSERT_EQ(slice->kind, ExprKind::slice);
  EXPECT_EQ(slice->children[1], nullptr);
  EXPECT_EQ(slice->children[2]->name, "n");

  EXPECT_EQ(parse("'it\\'s\\n'")->value.as_text(), "it's\n");
  EXPECT_EQ(parse("1e-2")->value.as_double(), 0.01);
  EXPECT_TRUE(parse("1.0")->value.is_double());
  EXPECT_EQ(parse("-9223372036854775808")->value.as_int(), INT64_MIN);
  EXPECT_EQ(parse("-9223372036854775808.5")->children.at(0)->value.as_double(), 9223372036854775808.5);
  EXPECT_EQ(parse("-9223372036854775808e2")->children.at(0)->value.as_double(), 9223372036854775808e2);
  EXPECT_EQ(parse("{'a': 1, 'b': 2,}")->children.size(), 4u);
  EXPECT_EQ(parse(" ( a )\n + b ")->op, Op::add);
}

TEST(Expression, RecordsPlacesOfNodes) {
  const ExprPtr e = parse("ab + f(cd, -e)");
  EXPECT_EQ(e->line, 3);
  EXPECT_EQ(e->column, 13);                             // the operator
  EXPECT_EQ(e->children[0]->column, 10);                // ab
  EXPECT_EQ(e->children[1]->column, 15);                // f(...)
  EXPECT_EQ(e->children[1]->positional(0).column, 17);  // cd
  EXPECT_EQ(e->children[1]->positional(1).column, 21);  // -
}

TEST(Expression, WritesParsedText) {
  for (const char* text : {"a + b * c",
                           "(a + b) * c",
                           "a - (b - c)",
                           "-a**b",
                           "(-a)**b",
                           "a**b**c",
                           "(a**b)**c",
                           "not (a and b)",
                           "(not a) in b",
                           "[x for x in xs if x > 1]",
                           "{k: v for k, v in pairs}",
                           "x[1:][0]",
                           "f(a, k=b)",
                           "m.0.weight",
                           "(a if b else c) if d else e",
                           "'it\\'s'",
                           "{'a': [1, 2.5, true, none, inf]}",
                           "(1).x",
                           "(2.5)[0]",
                           "(a == b) == c",
                           "(a or b) and c"}) {
    EXPECT_EQ(to_text(*parse(text)), text);
    EXPECT_EQ(to_text(*parse(to_text(*parse(text)))), text);
  }
}

TEST(Expression, ReportsMistakesWithPlaces) {
  EXPECT_EQ(error_of("1 < 2 < 3"), "a.yaml:3:16: comparisons do not chain; join them with `and`");
  EXPECT_EQ(error_of("a +"), "a.yaml:3:13: the expression ends too soon");
  EXPECT_EQ(error_of("f(a, [b"), "a.yaml:3:15: the expression ends too soon: `[` is not closed");
  EXPECT_EQ(error_of("a b"), "a.yaml:3:12: unexpected `b`");
  EXPECT_EQ(error_of(""), "a.yaml:3:10: an expression is missing");
  EXPECT_EQ(error_of("a if b"), "a.yaml:3:16: `a if c` needs an `else`");
  EXPECT_EQ(error_of("a not in b"), "a.yaml:3:12: `not in` is not known; write `not (a in b)`");
  EXPECT_EQ(error_of("a && b"), "a.yaml:3:12: `&&` is not known; write `and`");
  EXPECT_EQ(error_of("a = b"), "a.yaml:3:12: `=` is not known here; equality is `==`");
  EXPECT_EQ(error_of("\"a\""), "a.yaml:3:10: texts need single quotes: 'text'");
  EXPECT_EQ(error_of("'a"), "a.yaml:3:10: the text is not closed: a `'` is missing");
  EXPECT_EQ(error_of("'\\q'"), "a.yaml:3:11: a backslash in a text can be followed by \\ ' n or t only");
  EXPECT_EQ(error_of("True"), "a.yaml:3:10: `True` is not known; did you mean `true`?");
  EXPECT_EQ(error_of("010"), "a.yaml:3:10: leading zeros are refused: `010`");
  EXPECT_EQ(error_of("9223372036854775808"), "a.yaml:3:10: the integer 9223372036854775808 does not fit in 64 bits");
  EXPECT_EQ(error_of("1e999"), "a.yaml:3:10: the number 1e999 does not fit in a double");
  EXPECT_EQ(error_of("1.x"), "a.yaml:3:10: `1.` is not a number");
  EXPECT_EQ(error_of("2x"), "a.yaml:3:10: `2x` is not a number");
  EXPECT_EQ(error_of("a."), "a.yaml:3:12: a name must follow the `.`");
  EXPECT_EQ(error_of("f(k=1, 2)"), "a.yaml:3:17: an argument by position follows one by name");
  EXPECT_EQ(error_of("f(k=1, k=2)"), "a.yaml:3:17: the argument `k` is given twice");
  EXPECT_EQ(error_of("1(2)"), "a.yaml:3:11: only a function, a module or a method can be called");
  EXPECT_EQ(error_of("[x for 1 in xs]"), "a.yaml:3:17: a name must follow `for`");
  EXPECT_EQ(error_of("{a}"), "a.yaml:3:12: a `:` must follow the key");
  EXPECT_EQ(error_of("a ? b"), "a.yaml:3:12: unexpected `?`");
}

TEST(Expression, EnforcesLimits) {
  EXPECT_EQ(
      error_of(std::string(1001, 'a')),
      "a.yaml:3:10: the expression has 1001 characters; at most 1000 are allowed: name intermediate values with `let`");
  EXPECT_EQ(error_of(std::string(1000, 'a')), "none");
  const auto nested = [](int depth, const std::string& open, const std::string& close) {
    std::string text = "a";
    for (int i = 0; i < depth; ++i) text = str(open, text, close);
    return text;
  };
  EXPECT_EQ(error_of(nested(31, "(", ")")), "none");
  for (const std::string& text :
       {nested(33, "(", ")"), nested(200, "-", ""), nested(150, "not ", ""), nested(100, "f(", ")"),
        nested(60, "", ".b"), nested(60, "", "[0]"), nested(60, "[", "]"), nested(60, "2 ** ", "")}) {
    EXPECT_THAT(error_of(text), HasSubstr("nested deeper than 32")) << text;
  }
}

TEST(Expression, ParsesTemplates) {
  const auto parse_template = [](const std::string& text) {
    return parse_text(SourceText{text, Place{"a.yaml", 1, 5}, {}});
  };
  EXPECT_EQ(parse_template("plain $ {text}")->value.as_text(), "plain $ {text}");
  const ExprPtr mixed = parse_template("layers.${i + 1}.w");
  ASSERT_EQ(mixed->kind, ExprKind::concat);
  ASSERT_EQ(mixed->children.size(), 3u);
  EXPECT_EQ(mixed->children[0]->value.as_text(), "layers.");
  EXPECT_EQ(mixed->children[1]->op, Op::add);
  EXPECT_EQ(mixed->children[1]->column, 16);
  EXPECT_EQ(to_text(*mixed), "layers.${i + 1}.w");
  EXPECT_EQ(parse_template("${x}")->children.size(), 1u);
  EXPECT_EQ(parse_template("${ {'}': 1}['}'] }")->children.size(), 1u);
  for (const auto& [text, message] :
       {std::pair("a${b", "a.yaml:1:6: `${` is not closed: a `}` is missing"),
        std::pair("${}", "a.yaml:1:7: unexpected `}`"), std::pair("${a b}", "a.yaml:1:9: unexpected `b`")}) {
    try {
      parse_template(text);
      FAIL() << text;
    } catch (const ScenarioError& error) {
      EXPECT_EQ(error.message(), message);
    }
  }
}

}  // namespace
}  // namespace lockstep::scenario
