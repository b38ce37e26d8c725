// Checks of a step that concern several arguments or the values of arguments.
#include <algorithm>
#include <initializer_list>

#include "engine/core/text.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

namespace {

// The value of an expression that is a number, such as `0.1` or `-1`.
std::optional<double> literal_number(const Expr& value) {
  if (value.kind == ExprKind::literal && value.value.is_number()) return value.value.as_double();
  if (value.kind != ExprKind::unary || value.op != Op::negate) return std::nullopt;
  const std::optional<double> inner = literal_number(*value.children[0]);
  return inner ? std::optional(-*inner) : std::nullopt;
}

bool is_false(const Expr* value) {
  return value == nullptr || (value->kind == ExprKind::literal && value->value == Literal(false));
}

std::ptrdiff_t num_given(const Step& step, const VerbSpec& spec, std::initializer_list<std::string_view> arguments) {
  return std::count_if(arguments.begin(), arguments.end(), [&](std::string_view argument) {
    const std::optional<std::size_t> index = spec.index_of(argument);
    return index && step.given[*index];
  });
}

}  // namespace

// Checks the ranges of literal numbers. The run checks the ranges of computed numbers.
void Reader::check_ranges(const Step& step, const VerbSpec& spec) {
  for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
    const Expr* value = step.arguments[i].get();
    const std::optional<double> number = value != nullptr ? literal_number(*value) : std::nullopt;
    const std::string why = number ? out_of_range(spec.arguments[i].name, *number, spec.arguments[i].range) : "";
    if (!why.empty()) error(Place{step.place.file, value->line, value->column}, why);
  }
}

void Reader::check_rules(const Step& step, const VerbSpec& spec) {
  switch (step.verb) {
    case Verb::optimizer:
      if (num_given(step, spec, {"model", "parameters", "groups"}) != 1) {
        error(step.place, "`optimizer` needs one of `model`, `parameters` and `groups`");
      }
      break;
    case Verb::to:
      if (num_given(step, spec, {"dtype", "device"}) == 0) error(step.place, "`to` needs `dtype` or `device`");
      break;
    case Verb::set_flags:
      if (num_given(step, spec,
                    {"requires_gradient_sync", "requires_all_reduce", "is_last_backward", "reshard_after_backward",
                     "reshard_after_forward", "reduce_divide_factor"}) == 0) {
        error(step.place, "`set_flags` sets nothing: it needs a flag");
      }
      break;
    case Verb::prefetch:
      if (num_given(step, spec, {"forward", "backward"}) == 0) {
        error(step.place, "`prefetch` needs `forward` or `backward`");
      }
      break;
    case Verb::expect_events:
      if (num_given(step, spec, {"exactly", "in_order", "never"}) == 0) {
        error(step.place, "`expect_events` needs `exactly`, `in_order` or `never`");
      }
      break;
    case Verb::expect_launches:
      if (num_given(step, spec, {"exactly", "in_order", "never", "ordered", "concurrent"}) == 0) {
        error(step.place, "`expect_launches` needs `exactly`, `in_order`, `never`, `ordered` or `concurrent`");
      }
      break;
    case Verb::expect_collectives:
      if (num_given(step, spec, {"exactly", "total", "bytes"}) == 0) {
        error(step.place, "`expect_collectives` needs `exactly`, `total` or `bytes`");
      }
      break;
    case Verb::hook:
      check_hook_target(step, spec);
      break;
    case Verb::observe:
      check_memory_purposes(step);
      break;
    case Verb::read:
    case Verb::write:
      check_file_name(step);
      break;
    default:
      break;
  }
  if (!step.as.empty() && spec.result == "handle" && spec.index_of("async") && is_false(step.argument("async"))) {
    error(step.place, str("`", spec.name, "` gives a handle only with `async: true`"));
  }
}

void Reader::check_hook_target(const Step& step, const VerbSpec& spec) {
  if (num_given(step, spec, {"modules", "parameters", "optimizer"}) != 1) {
    error(step.place, "`hook` needs one of `modules`, `parameters` and `optimizer`");
    return;
  }
  const Expr* at = step.argument("at");
  if (at == nullptr || at->kind != ExprKind::literal) return;
  for (const HookPointSpec& point : hook_points()) {
    if (point.name != at->value.as_text()) continue;
    static constexpr std::string_view targets[] = {"modules", "parameters", "optimizer"};
    const std::string_view target = targets[static_cast<int>(point.target)];
    if (num_given(step, spec, {target}) == 0) error(step.place, str("`at: ", point.name, "` needs `", target, "`"));
  }
}

void Reader::check_memory_purposes(const Step& step) {
  const Expr* memory = step.argument("memory");
  if (memory == nullptr || memory->kind == ExprKind::concat) return;
  for_each_node(*memory, [&](const Expr& word) {
    if (word.kind != ExprKind::literal || !word.value.is_text()) return;
    const std::vector<std::string>& known = memory_purposes();
    if (std::find(known.begin(), known.end(), word.value.as_text()) != known.end()) return;
    error(Place{step.place.file, word.line, word.column},
          str("unknown purpose of memory `", word.value.as_text(), "`", suggestion(word.value.as_text(), known)));
  });
}

void Reader::check_file_name(const Step& step) {
  const Expr* file = step.argument("file");
  if (file == nullptr || file->kind != ExprKind::literal) return;
  const std::string& path = file->value.as_text();
  const Place place{step.place.file, file->line, file->column};
  if (step.verb == Verb::write && path.starts_with("/")) {
    error(place, "`write` writes to the case's folder only; a leading `/` is allowed in `read` only");
  }
  if (path == ".." || path.starts_with("../") || path.find("/../") != std::string::npos || path.ends_with("/..")) {
    error(place, "`..` is not allowed in the name of a file");
  }
  if (!path.ends_with(".json") && !path.ends_with(".safetensors")) {
    error(place, "a file must end in .json or .safetensors");
  }
}

}  // namespace lockstep::scenario
