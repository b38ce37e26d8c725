#include "harness/run/trace/layout_table.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "engine/mesh/sharded.hpp"
#include "harness/run/values/paths.hpp"

namespace lockstep::run {

namespace {

constexpr std::size_t most_rows = 60;

using Row = std::array<std::string, 5>;

Row row_of(const std::string& path, const Tensor& parameter) {
  if (!parameter.is_sharded()) return {path, to_text(parameter.sizes()), "plain", "", to_text(parameter.sizes())};
  const layout::ShardedLayout& layout = *parameter.layout();
  return {path, to_text(layout.sizes), layout::to_text(layout.placements), layout.mesh.text(),
          to_text(parameter.sizes())};
}

std::vector<Row> rows_of(const ModuleMatch& model) {
  std::vector<Row> rows;
  bool any_sharded = false;
  for (const nn::NamedParameter& parameter : nn::named_parameters(model.module)) {
    const Tensor& trained = parameter.trained();
    any_sharded = any_sharded || trained.is_sharded();
    rows.push_back(row_of(str(model.path, ".", parameter.path), trained));
  }
  return any_sharded ? rows : std::vector<Row>{};
}

}  // namespace

std::string layout_table(const Scope& scope) {
  if (!scope.frame) return "";
  std::vector<Row> rows = {{"parameter", "sizes", "placements", "mesh", "on this rank"}};
  for (const ModuleMatch& model : outermost_modules(scope))
    for (Row& row : rows_of(model)) rows.push_back(std::move(row));
  if (rows.size() == 1) return "";
  const std::size_t left_out = rows.size() > most_rows + 1 ? rows.size() - most_rows - 1 : 0;
  rows.resize(rows.size() - left_out);
  std::array<std::size_t, 5> widths{};
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    text += "  ";
    for (std::size_t i = 0; i < row.size(); ++i) text += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  if (left_out > 0) text += str("  and ", left_out, " more\n");
  return text;
}

}  // namespace lockstep::run
