// The arguments of tensor_parallel.
#include <algorithm>

#include "engine/core/checked.hpp"
#include "harness/run/verbs/parallel_arguments.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

namespace {

using layout::Placement;
using Placements = std::vector<std::optional<Placement>>;

Placement placement_of(const Value& value, std::string_view subject) {
  return layout::placement_from_text(value.as_text(subject));
}

std::optional<Placement> maybe_placement(const Value& style, const char* key) {
  const Value* given = style.find(Key(key));
  if (!given || given->is_none()) return {};
  return placement_of(*given, key);
}

// A placement, or a list of placements and `none`.
Placements placements_of(const Value* value, std::string_view key) {
  if (!value || value->is_none()) return {};
  if (!value->is(Value::Kind::list)) return {placement_of(*value, key)};
  Placements placements;
  for (const Value& item : value->as_list(key))
    placements.push_back(item.is_none() ? std::nullopt : std::optional(placement_of(item, key)));
  return placements;
}

[[noreturn]] void differ_in_length(const std::string& style, std::string_view given, std::string_view wanted,
                                   const std::string& how) {
  throw Error(str(style, ": `", given, "` and `", wanted, "` should have same length! ", how),
              "state both placements of every input or output that changes");
}

std::vector<std::optional<ConversionArgument>> conversions_of(const std::string& kind, const Value& style) {
  const Placements given = placements_of(style.find(Key("given")), "given");
  const Placements wanted = placements_of(style.find(Key("wanted")), "wanted");
  if (given.size() != wanted.size())
    differ_in_length(kind, "given", "wanted", str("They have ", given.size(), " and ", wanted.size(), " placements"));
  std::vector<std::optional<ConversionArgument>> conversions;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (wanted[i] && !given[i])
      throw Error(str(kind, ": item ", i, " of `wanted` is ", layout::to_text(*wanted[i]), ", that of `given` is none"),
                  "state the placement that a plain tensor has");
    if (given[i])
      conversions.emplace_back(ConversionArgument{*given[i], wanted[i]});
    else
      conversions.emplace_back();
  }
  return conversions;
}

std::vector<std::pair<std::string, ConversionArgument>> named_conversions_of(const std::string& kind,
                                                                             const Value& style) {
  const Value none = Value::map({});
  const Value* given_value = style.find(Key("named_given"));
  const Value* wanted_value = style.find(Key("named_wanted"));
  const Map& given = (given_value ? *given_value : none).as_map("named_given");
  const Value& wanted = wanted_value ? *wanted_value : none;
  if (given.size() != wanted.as_map("named_wanted").size())
    differ_in_length(kind, "named_given", "named_wanted",
                     str("They have ", given.size(), " and ", wanted.as_map("named_wanted").size(), " placements"));
  std::vector<std::pair<std::string, ConversionArgument>> conversions;
  for (const auto& [key, value] : given) {
    const Value* target = wanted.find(key);
    if (!target) throw Error(str(kind, ": `", key.text, "` is in `named_given`, but not in `named_wanted`"));
    conversions.emplace_back(key.text,
                             ConversionArgument{placement_of(value, key.text), placement_of(*target, key.text)});
  }
  return conversions;
}

const std::vector<std::string>& style_names() {
  static const std::vector<std::string> names = {"colwise", "rowwise", "sequence_parallel", "prepare_input",
                                                 "prepare_output"};
  return names;
}

}  // namespace

StyleArgument style_argument(const Value& value) {
  const Value* name = value.is(Value::Kind::map) ? value.find(Key("style")) : nullptr;
  const auto found = !name || !name->is(Value::Kind::text)
                         ? style_names().end()
                         : std::find(style_names().begin(), style_names().end(), name->as_text("style"));
  if (found == style_names().end())
    throw Error(str("a style is needed, not ", describe(value)),
                "give colwise(), rowwise(), sequence_parallel(), prepare_input() or prepare_output()");
  StyleArgument style;
  style.kind = static_cast<StyleKind>(found - style_names().begin());
  style.input = maybe_placement(value, "input");
  style.output = maybe_placement(value, "output");
  if (const Value* dim = value.find(Key("dim"))) style.dim = checked_int(dim->as_int("dim"), "sequence_parallel: dim");
  if (const Value* keep = value.find(Key("keep_sharded"))) style.keep_sharded = keep->as_bool("keep_sharded");
  style.conversions = conversions_of(*found, value);
  style.named = named_conversions_of(*found, value);
  if (style.kind == StyleKind::prepare_input && style.conversions.empty() && style.named.empty())
    throw Error("prepare_input changes nothing", "give `given` and `wanted`, or `named_given` and `named_wanted`");
  return style;
}

namespace {

[[noreturn]] void matches_nothing(const std::string& pattern, const ModuleMatch& model) {
  std::vector<std::string> paths;
  for (const nn::NamedModule& entry : nn::named_modules(model.module))
    if (!entry.path.empty()) paths.push_back(entry.path);
  throw Error(str("tensor_parallel: `", pattern, "` of the plan matches no module of ", model.path,
                  scenario::suggestion(pattern, paths)),
              "look at the description of the model");
}

}  // namespace

TensorParallelArguments tensor_parallel_arguments(const StepCall& call) {
  TensorParallelArguments arguments;
  arguments.model = call.module("model");
  arguments.mesh = call.mesh();
  const Value plan = call.value("plan");
  for (const auto& [key, value] : plan.as_map("plan")) {
    StyleArgument style;
    try {
      style = style_argument(value);
    } catch (const Error& error) {
      throw Error(str("`", key.text, "` of the plan: ", error.message()), error.remedy());
    }
    const std::vector<ModuleMatch> found = match_modules(arguments.model.module, key.text);
    if (found.empty()) matches_nothing(key.text, arguments.model);
    for (const ModuleMatch& at : found) arguments.modules.push_back({at.path, at.module, style});
  }
  return arguments;
}

}  // namespace lockstep::run
