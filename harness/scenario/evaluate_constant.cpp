// Evaluates expressions before launch: literals, constants and plain functions.
#include "engine/core/checked.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/arithmetic.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/expand.hpp"

namespace lockstep::scenario {

namespace {

class Evaluator {
 public:
  Evaluator(const Bindings& bindings, const std::string& file) : bindings_(bindings), file_(file) {}

  Literal evaluate(const Expr& expr) {
    if (++steps_ > max_steps) {
      throw ScenarioError(Place{file_, expr.line, expr.column},
                          "the expression takes too long to evaluate before launch");
    }
    try {
      Budget::ask_time();
      return value_of(expr);
    } catch (const ScenarioError&) {
      throw;
    } catch (const OutOfTime& error) {
      throw ScenarioError(Place{file_, expr.line, expr.column}, error.what());
    } catch (const Error& error) {
      throw ScenarioError(Place{file_, expr.line, expr.column}, error.message());
    }
  }

 private:
  // Bounds nested comprehensions.
  static constexpr std::int64_t max_steps = 2'000'000;

  Literal child(const Expr& expr, std::size_t i) { return evaluate(*expr.children[i]); }

  bool condition(const Expr& expr) {
    const Literal value = evaluate(expr);
    if (value.is_bool()) return value.as_bool();
    throw ScenarioError(Place{file_, expr.line, expr.column},
                        str("a condition must be a boolean, got ", name_of(value.kind()), " ", value.shown()));
  }

  Literal value_of(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::literal:
        return expr.value;
      case ExprKind::name:
        return named(expr);
      case ExprKind::attribute:
        return item_at(child(expr, 0), Literal(expr.name));
      case ExprKind::index:
        return item_at(child(expr, 0), child(expr, 1));
      case ExprKind::slice:
        return slice_of(child(expr, 0), expr.children[1] == nullptr ? Literal() : child(expr, 1),
                        expr.children[2] == nullptr ? Literal() : child(expr, 2));
      case ExprKind::call:
        return call(expr);
      case ExprKind::unary:
        return expr.op == Op::not_ ? Literal(!condition(*expr.children[0])) : negate(child(expr, 0));
      case ExprKind::binary: {
        if (expr.op == Op::and_) return Literal(condition(*expr.children[0]) && condition(*expr.children[1]));
        if (expr.op == Op::or_) return Literal(condition(*expr.children[0]) || condition(*expr.children[1]));
        const Literal left = child(expr, 0);
        return apply(expr.op, left, child(expr, 1));
      }
      case ExprKind::conditional:
        return condition(*expr.children[1]) ? child(expr, 0) : child(expr, 2);
      case ExprKind::list: {
        LiteralList out;
        for (const ExprPtr& item : expr.children) out.push_back(evaluate(*item));
        return Literal(std::move(out));
      }
      case ExprKind::map: {
        Literal out{LiteralMap{}};
        for (std::size_t i = 0; i + 1 < expr.children.size(); i += 2)
          out = with_entry(out, child(expr, i), child(expr, i + 1));
        return out;
      }
      case ExprKind::list_of_each:
      case ExprKind::map_of_each:
        return comprehension(expr);
      case ExprKind::concat: {
        std::string out;
        for (const ExprPtr& piece : expr.children) {
          const Literal value = evaluate(*piece);
          if (expr.children.size() == 1 && value.is_list()) return value;
          const std::string more = value.text();
          const std::size_t size = out.size() + more.size();
          Budget::ask(static_cast<std::int64_t>(size), [size] { return str("a text of ", size, " characters"); });
          out += more;
        }
        return Literal(std::move(out));
      }
    }
    throw Error("an expression of no kind");
  }

  static Literal with_entry(const Literal& map, const Literal& key, const Literal& value) {
    if (!key.is_text() && !key.is_int()) throw Error(str("the key ", key.shown(), " is neither text nor integer"));
    return call_plain(Function::put, {map, Literal(key.text()), value});
  }

  Literal named(const Expr& expr) {
    for (auto it = inner_.rbegin(); it != inner_.rend(); ++it) {
      if (it->first == expr.name) return it->second;
    }
    const auto found = bindings_.find(expr.name);
    if (found != bindings_.end()) return found->second;
    throw Error(str("`", expr.name, "` is not known before launch"));
  }

  Literal call(const Expr& expr) {
    if (expr.function == Function::none || spec_of(expr.function).kind != FunctionKind::plain) {
      throw Error(str("`", to_text(*expr.children[0]), "` cannot be called before launch"));
    }
    std::vector<Literal> arguments;
    for (std::size_t i = 0; i < expr.num_positional(); ++i) arguments.push_back(evaluate(expr.positional(i)));
    // Arguments by name follow the positional ones in the order of the signature, without gaps.
    const FunctionSpec& spec = spec_of(expr.function);
    for (std::size_t at = arguments.size(); at < spec.names.size(); ++at) {
      bool found = false;
      for (std::size_t i = 0; i < expr.names.size(); ++i) {
        if (expr.names[i] != spec.names[at]) continue;
        arguments.push_back(evaluate(expr.keyword(i)));
        found = true;
      }
      if (!found) break;
    }
    if (arguments.size() != expr.children.size() - 1)
      throw Error(str("the arguments do not match ", spec.name, "(", spec.signature, ")"));
    return call_plain(expr.function, arguments);
  }

  Literal comprehension(const Expr& expr) {
    const bool map = expr.kind == ExprKind::map_of_each;
    const std::size_t list = map ? 2 : 1;
    const Literal items = child(expr, list);
    Literal out = map ? Literal(LiteralMap{}) : Literal();
    LiteralList values;
    const Charge growing(static_cast<std::int64_t>(bounded_product(items.as_list().size(), sizeof(Literal))));
    for (const Literal& item : items.as_list()) {
      const std::vector<Literal> values_of_names = unpack(item, expr.names.size());
      for (std::size_t i = 0; i < values_of_names.size(); ++i) inner_.emplace_back(expr.names[i], values_of_names[i]);
      if (expr.children[list + 1] == nullptr || condition(*expr.children[list + 1])) {
        if (map) {
          const Literal key = child(expr, 0);
          out = with_entry(out, key, child(expr, 1));
        } else {
          values.push_back(child(expr, 0));
        }
      }
      inner_.resize(inner_.size() - values_of_names.size());
    }
    return map ? out : Literal(std::move(values));
  }

  const Bindings& bindings_;
  const std::string& file_;
  std::int64_t steps_ = 0;
  std::vector<std::pair<std::string, Literal>> inner_;  // loop names of comprehensions, innermost last
};

}  // namespace

Literal evaluate_constant(const Expr& expr, const Bindings& bindings, const std::string& file) {
  note_line(expr.line, expr.column);
  return Evaluator(bindings, file).evaluate(expr);
}

}  // namespace lockstep::scenario
