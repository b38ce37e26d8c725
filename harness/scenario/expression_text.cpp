// Expressions and operators as text, for `explain` and for messages.
#include <array>

#include "engine/core/text.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

namespace {

constexpr std::array<std::string_view, 20> op_names = {"",   "**", "-", "*",  "/", "//", "%",  "@",   "+",   "-",
                                                       "==", "!=", "<", "<=", ">", ">=", "in", "not", "and", "or"};

constexpr int comparison_strength = 4;

// Binding strength: a greater number binds more strongly. Operands without an operator have 10.
int strength(const Expr& expr) {
  if (expr.kind == ExprKind::conditional) return 0;
  if (expr.kind != ExprKind::unary && expr.kind != ExprKind::binary) return 10;
  switch (expr.op) {
    case Op::or_:
      return 1;
    case Op::and_:
      return 2;
    case Op::not_:
      return 3;
    case Op::add:
    case Op::subtract:
      return 5;
    case Op::multiply:
    case Op::divide:
    case Op::floor_divide:
    case Op::modulo:
    case Op::matmul:
      return 6;
    case Op::negate:
      return 7;
    case Op::power:
      return 8;
    default:
      return comparison_strength;
  }
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      if (c == '\'' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "'";
}

std::string literal_text(const Literal& value) {
  if (value.is_text()) return quoted(value.as_text());
  if (value.is_list()) {
    std::string out = "[";
    for (const Literal& item : value.as_list()) out += str(out.size() > 1 ? ", " : "", literal_text(item));
    return out + "]";
  }
  if (value.is_map()) {
    std::string out = "{";
    for (const auto& [key, item] : value.as_map()) {
      out += str(out.size() > 1 ? ", " : "", quoted(key), ": ", literal_text(item));
    }
    return out + "}";
  }
  return value.text();
}

std::string write(const Expr& expr);

std::string write_at(const Expr& expr, int least) {
  return strength(expr) < least ? str("(", write(expr), ")") : write(expr);
}

// What `.`, `[` or `(` follows. A number would take the point for its own.
std::string write_operand(const Expr& expr) {
  const bool is_number = expr.kind == ExprKind::literal && expr.value.is_number();
  return is_number ? str("(", write(expr), ")") : write_at(expr, 10);
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += str(out.empty() ? "" : ", ", name);
  return out;
}

std::string for_clause(const Expr& expr, std::size_t list) {
  std::string out = str(" for ", joined(expr.names), " in ", write_at(*expr.children[list], 1));
  if (expr.children[list + 1] != nullptr) out += str(" if ", write_at(*expr.children[list + 1], 1));
  return out;
}

std::string write_call(const Expr& expr) {
  std::string arguments;
  for (std::size_t i = 0; i < expr.num_positional(); ++i) {
    arguments += str(arguments.empty() ? "" : ", ", write(expr.positional(i)));
  }
  for (std::size_t i = 0; i < expr.names.size(); ++i) {
    arguments += str(arguments.empty() ? "" : ", ", expr.names[i], "=", write(expr.keyword(i)));
  }
  return str(write(*expr.children[0]), "(", arguments, ")");
}

// Powers group to the right, comparisons do not chain, and all other operators group to the left.
std::string write_binary(const Expr& expr) {
  const int own = strength(expr);
  if (expr.op == Op::power) return str(write_at(*expr.children[0], own + 1), "**", write_at(*expr.children[1], 7));
  const int left = own == comparison_strength ? own + 1 : own;
  return str(write_at(*expr.children[0], left), " ", name_of(expr.op), " ", write_at(*expr.children[1], own + 1));
}

std::string write_list(const Expr& expr) {
  std::string items;
  for (const ExprPtr& item : expr.children) items += str(items.empty() ? "" : ", ", write(*item));
  return str("[", items, "]");
}

std::string write_map(const Expr& expr) {
  std::string items;
  for (std::size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    items += str(items.empty() ? "" : ", ", write(*expr.children[i]), ": ", write(*expr.children[i + 1]));
  }
  return str("{", items, "}");
}

std::string write_template(const Expr& expr) {
  std::string out;
  for (const ExprPtr& piece : expr.children) {
    const bool text = piece->kind == ExprKind::literal && piece->value.is_text() && expr.children.size() > 1;
    out += text ? piece->value.as_text() : str("${", write(*piece), "}");
  }
  return out;
}

std::string write(const Expr& expr) {
  const auto child = [&](std::size_t i) -> const Expr& { return *expr.children[i]; };
  switch (expr.kind) {
    case ExprKind::literal:
      return literal_text(expr.value);
    case ExprKind::name:
      return expr.name;
    case ExprKind::attribute:
      return str(write_operand(child(0)), ".", expr.name);
    case ExprKind::index:
      return str(write_operand(child(0)), "[", write(child(1)), "]");
    case ExprKind::slice:
      return str(write_operand(child(0)), "[", expr.children[1] == nullptr ? std::string() : write(child(1)), ":",
                 expr.children[2] == nullptr ? std::string() : write(child(2)), "]");
    case ExprKind::call:
      return write_call(expr);
    case ExprKind::unary:
      return expr.op == Op::not_ ? str("not ", write_at(child(0), 3)) : str("-", write_at(child(0), 7));
    case ExprKind::binary:
      return write_binary(expr);
    case ExprKind::conditional:
      return str(write_at(child(0), 1), " if ", write_at(child(1), 1), " else ", write(child(2)));
    case ExprKind::list:
      return write_list(expr);
    case ExprKind::map:
      return write_map(expr);
    case ExprKind::list_of_each:
      return str("[", write(child(0)), for_clause(expr, 1), "]");
    case ExprKind::map_of_each:
      return str("{", write(child(0)), ": ", write(child(1)), for_clause(expr, 2), "}");
    case ExprKind::concat:
      return write_template(expr);
  }
  return {};
}

}  // namespace

std::string_view name_of(Op op) { return op_names[static_cast<std::size_t>(op)]; }

std::string to_text(const Expr& expr) { return write(expr); }

}  // namespace lockstep::scenario
