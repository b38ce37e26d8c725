#include "engine/parallel/tensor_parallel_styles.hpp"

#include "engine/core/error.hpp"

namespace lockstep::parallel {

using layout::Placement;
using nn::Structure;

namespace {

constexpr std::string_view names[] = {"colwise", "rowwise", "sequence_parallel", "prepare_input", "prepare_output"};
static_assert(std::size(names) == std::variant_size_v<Style>);

[[noreturn]] void refuse_type(std::string_view style, std::string_view type) {
  throw Error(str(style, " supports Linear and Embedding, but not ", type),
              "plan the Linear and Embedding modules below it, or another style");
}

struct PlacementOf {
  std::string_view type, parameter;
  std::optional<Placement> operator()(const Colwise&) const {
    if (type == "Linear") return layout::shard(0);
    if (type == "Embedding") return layout::shard(1);
    refuse_type(names[0], type);
  }
  std::optional<Placement> operator()(const Rowwise&) const {
    if (type == "Linear") return parameter == "bias" ? layout::replicate() : layout::shard(1);
    if (type == "Embedding") return layout::shard(0);
    refuse_type(names[1], type);
  }
  std::optional<Placement> operator()(const SequenceParallel&) const { return layout::replicate(); }
  std::optional<Placement> operator()(const PrepareInput&) const { return {}; }
  std::optional<Placement> operator()(const PrepareOutput&) const { return {}; }
};

Structure shown(const std::optional<Placement>& placement) {
  return placement ? Structure(layout::to_text(*placement)) : Structure();
}

template <class Member>
Structure placements(const std::vector<std::optional<Conversion>>& conversions, Member Conversion::*which) {
  Structure::List items;
  for (const auto& conversion : conversions) items.push_back(conversion ? shown((*conversion).*which) : Structure());
  return Structure::list(std::move(items));
}

template <class Member>
Structure placements(const std::vector<std::pair<std::string, Conversion>>& conversions, Member Conversion::*which) {
  Structure::Map items;
  for (const auto& [name, conversion] : conversions) items.emplace_back(name, shown(conversion.*which));
  return Structure::map(std::move(items));
}

using Settings = std::map<std::string, Structure>;
struct SettingsOf {
  Settings operator()(const Colwise& style) const { return linear(style); }
  Settings operator()(const Rowwise& style) const { return linear(style); }
  Settings operator()(const SequenceParallel& style) const {
    return {{"dim", style.dim}, {"keep_sharded", style.keep_sharded}};
  }
  Settings operator()(const PrepareInput& style) const {
    return {{"given", placements(style.positional, &Conversion::given)},
            {"wanted", placements(style.positional, &Conversion::wanted)},
            {"named_given", placements(style.named, &Conversion::given)},
            {"named_wanted", placements(style.named, &Conversion::wanted)},
            {"keep_sharded", style.keep_sharded}};
  }
  Settings operator()(const PrepareOutput& style) const {
    return {{"given", placements(style.outputs, &Conversion::given)},
            {"wanted", placements(style.outputs, &Conversion::wanted)},
            {"keep_sharded", style.keep_sharded}};
  }
  template <class LinearStyle>
  static Settings linear(const LinearStyle& style) {
    return {{"input", layout::to_text(style.input)},
            {"output", layout::to_text(style.output)},
            {"keep_sharded", style.keep_sharded}};
  }
};

}  // namespace

std::string_view name_of(const Style& style) { return names[style.index()]; }

std::optional<Placement> placement_of(const Style& style, std::string_view type, std::string_view parameter) {
  return std::visit(PlacementOf{type, parameter}, style);
}

std::map<std::string, Structure> settings_of(const Style& style) {
  Settings settings = std::visit(SettingsOf{}, style);
  settings["style"] = std::string(name_of(style));
  return settings;
}

}  // namespace lockstep::parallel
