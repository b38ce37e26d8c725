// The forward of a model that the grammar writes: operations on the output of a Linear, on views of it, and changes in
// place. A tensor that backward needs is never changed: `is_kept_` says whether an operation keeps the present one.
#include <array>
#include <string>
#include <vector>

#include "engine/core/error.hpp"
#include "harness/fuzz/grammar.hpp"

namespace lockstep::fuzz {

namespace {

struct Operation {
  const char*
      text;  // of the present tensor `#`, its last dim `$`, the reversed positions of that dim `~`, and the input x
  bool keeps_input;  // backward needs `#`
  bool keeps_output;
};

constexpr std::array<Operation, 11> unary{{{"tanh(#)", false, true},
                                           {"sigmoid(#)", false, true},
                                           {"relu(#)", false, true},
                                           {"gelu(#)", true, false},
                                           {"abs(#)", true, false},
                                           {"exp(tanh(#))", false, true},
                                           {"sqrt(# * # + 1)", true, true},
                                           {"log(# * # + 1)", true, false},
                                           {"rsqrt(# * # + 1)", true, true},
                                           {"softmax(#, -1)", false, true},
                                           {"log_softmax(#, -1)", false, true}}};

constexpr std::array<Operation, 8> with_input{{{"# + x", false, false},
                                               {"# * sigmoid(x)", true, false},
                                               {"# / (1 + abs(x))", true, false},
                                               {"softmax(# @ transpose(x, -2, -1), -1) @ x", true, false},
                                               {"where(gt(#, x), #, x)", false, false},
                                               {"sigmoid(#) * x", false, false},
                                               {"attention(#, x, x)", true, true},
                                               {"# + detach(x)", false, false}}};

constexpr std::array<Operation, 6> reductions{{{"# + mean(#, -1, keepdim=true)", false, false},
                                               {"# - amax(#, -1, keepdim=true)", true, false},
                                               {"# + amin(x, -1, keepdim=true)", false, false},
                                               {"# / (1 + amax(abs(#), -1, keepdim=true))", true, false},
                                               {"# * tanh(mean(#, -1, keepdim=true))", true, false},
                                               {"# + sum(x, -1, keepdim=true) * 0.125", false, false}}};

constexpr std::array<Operation, 8> moves{{{"clone(#)", false, false},
                                          {"cat([narrow(#, -1, 1, $ - 1), narrow(#, -1, 0, 1)], -1)", false, false},
                                          {"cat([chunk(#, 2, -1)[1], chunk(#, 2, -1)[0]], -1)", false, false},
                                          {"index_select(#, -1, tensor([~]))", false, false},
                                          {"transpose(contiguous(transpose(#, 0, 1)), 0, 1)", false, false},
                                          {"sum(stack([#, x], 0), 0)", false, false},
                                          {"where(gt(#, 0), #, 0.25)", false, false},
                                          {"# + select(#, 0, 0)", false, false}}};

// `#` is the changed tensor, or the tensor of which the change takes the same part.
constexpr std::array<const char*, 7> parts{"#",
                                           "narrow(#, -1, 0, 1)",
                                           "#[0:1]",
                                           "transpose(#, 0, 1)[1:2]",
                                           "narrow(#[1:2], -1, 1, 1)",
                                           "select(#, -1, 1)",
                                           "narrow(unsqueeze(#, 0), -1, 1, $ - 1)"};

// `#` is the changed view, `&` the same part of the input.
constexpr std::array<const char*, 11> changes{"mul_(#, 0.5)",
                                              "add_(#, 0.25)",
                                              "sub_(#, &)",
                                              "add_(#, &, alpha=0.5)",
                                              "mul_(#, sigmoid(&))",
                                              "div_(#, 1 + abs(&))",
                                              "relu_(#)",
                                              "copy_(#, &)",
                                              "zero_(#)",
                                              "fill_(#, 0.5)",
                                              "div_(#, -2)"};
constexpr const char* kept_view = "narrow(#, -1, 0, $ - 1)";
constexpr std::size_t change_relu = 6;

std::string replaced(std::string text, char mark, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size()) text.replace(at, 1, by);
  return text;
}

class Forward {
 public:
  Forward(const std::string& name, int dim, bool tensor_parallel) {
    model_.name = name;
    model_.dim = dim;
    now_ = bind("inner(x)");
    is_kept_ = tensor_parallel_ = tensor_parallel;  // the gradient of a sharded output passes through its local shard
  }

  void add(Chooser choose) {
    switch (choose.pick("operation", {4, 12, 12, 8, 8, 5, 3, is_kept_ ? 0 : 40, is_kept_ || has_view() ? 0 : 8})) {
      case 1:
        return apply(one_of(unary, choose, "unary"));
      case 2:
        return apply(one_of(with_input, choose, "with input"));
      case 3:
        return apply(one_of(reductions, choose, "reduction"));
      case 4:
        return apply(one_of(moves, choose, "move"));
      case 5:
        calls_again_ = true;
        return apply({"inner(#)", true, tensor_parallel_});
      case 6:
        model_.has_parameter = true;
        return apply({"# * scale", true, false});
      case 7:
        return change(choose);
      case 8:
        view_ = bind(filled(kept_view, now_));
        return;
      default:
        return apply({"# * 0.5", false, false});
    }
  }

  // An operation that keeps its input or its output, and a change of the kept tensor.
  void add_stale(Chooser choose) {
    const Operation operation = one_of(unary, choose, "unary");
    const std::string input = now_;
    view_.clear();  // a sum with it would be a new tensor
    apply(operation);
    const std::string output = now_;
    if (!operation.keeps_output || (operation.keeps_input && choose.chance("of the input", 50))) now_ = input;
    change(choose);
    now_ = output;
  }

  DerivedForward finish() {
    if (has_view()) is_kept_ = false;
    // The hooks of an API watch the output, and not the tensor of which it is a view.
    const bool output_may_change = !is_kept_ && (!is_view_ || has_view());
    model_.statements.emplace_back("return", now_ + of_view());
    return {.model = std::move(model_), .output_may_change = output_may_change, .calls_again = calls_again_};
  }

 private:
  template <std::size_t size>
  static Operation one_of(const std::array<Operation, size>& all, Chooser& choose, const char* name) {
    return all.at(static_cast<std::size_t>(choose.pick(name, std::vector<int>(size, 1))));
  }

  bool has_view() const { return !view_.empty(); }

  // What the view that was made before shows now, so that it stays in use until then.
  std::string of_view() const { return has_view() ? str(" + mean(", view_, ", -1, keepdim=true)") : ""; }

  std::string bind(const std::string& text) {
    std::string name = str("h", model_.statements.size());
    model_.statements.emplace_back(name, text);
    return name;
  }

  std::string filled(const char* text, const std::string& tensor) const {
    std::string reversed;
    for (int i = model_.dim; i-- > 0;) reversed += str(i, i > 0 ? ", " : "");
    const std::string named = replaced(replaced(text, '#', tensor), '~', reversed);
    return replaced(named, '$', std::to_string(model_.dim));
  }

  void apply(const Operation& operation) {
    is_view_ = std::string(operation.text).starts_with("transpose");
    now_ = bind(filled(operation.text, now_) + of_view());
    is_kept_ = operation.keeps_output && !has_view();
    view_.clear();
  }

  void change(Chooser choose) {
    const bool is_of_view = has_view() && choose.chance("of the view", 50);
    const auto part = static_cast<std::size_t>(choose.pick("part", {20, 20, 10, 10, 10, 10, 10}));
    const bool is_whole = !is_of_view && part == 0;
    const int erases = is_whole ? 0 : 6;  // a Linear whose output is lost has zeros as its gradient
    const auto kind =
        static_cast<std::size_t>(choose.pick("change", {12, 10, 10, 10, 10, 8, 10, erases, erases, erases, 6}));
    const char* view = is_of_view ? kept_view : parts.at(part);
    const std::string other = filled(view, "x"), changed = is_of_view ? view_ : filled(view, now_);
    const std::string result = bind(replaced(replaced(changes.at(kind), '#', changed), '&', other));
    if (is_whole && choose.chance("goes on with the result", 50)) now_ = result;
    is_kept_ |= kind == change_relu;
  }

  Written model_;
  std::string now_, view_;  // names; no view: empty
  bool is_view_ = false;    // `now_`
  bool tensor_parallel_ = false, calls_again_ = false;
  bool is_kept_ = false;  // by an operation, for backward
};

}  // namespace

DerivedForward derive_forward(Chooser choose, const std::string& name, int dim, bool tensor_parallel) {
  Forward forward(name, dim, tensor_parallel);
  for (Chooser& item : choose.items("operations", 1, 5)) forward.add(item);
  return forward.finish();
}

Written derive_stale_forward(Chooser choose) {
  Forward forward("Stale", 4, false);
  for (Chooser& item : choose.items("operations", 0, 2)) forward.add(item);
  forward.add_stale(choose.in("last"));
  return forward.finish().model;
}

}  // namespace lockstep::fuzz
