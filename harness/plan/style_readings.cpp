#include "harness/plan/style_readings.hpp"

#include "engine/core/error.hpp"

namespace lockstep::plan {

using layout::partial;
using layout::Placement;
using layout::replicate;
using layout::shard;

namespace {

// A row of the table in the header.
struct Row {
  StyleKind style;
  ModuleKind module;
  Placement weight, bias;
  Placement given, computed_with, gradient;  // of the input
  Placement computed, returned;              // the output
};

const std::vector<Row>& rows() {
  static const Placement last = shard(-1);
  static const std::vector<Row> table = {
      {StyleKind::colwise, ModuleKind::linear, shard(0), shard(0), replicate(), replicate(), partial(), last, last},
      {StyleKind::colwise, ModuleKind::embedding, shard(1), {}, replicate(), replicate(), replicate(), last, last},
      {StyleKind::rowwise, ModuleKind::linear, shard(1), replicate(), last, last, last, partial(), replicate()},
      {StyleKind::rowwise, ModuleKind::embedding, shard(0), {}, last, replicate(), replicate(), partial(), replicate()},
  };
  return table;
}

const Row& row_of(StyleKind style, ModuleKind module) {
  for (const Row& row : rows())
    if (row.style == style && row.module == module) return row;
  throw Error("the plan knows colwise and rowwise for Linear and Embedding only");
}

}  // namespace

ValueReading input_reading(const StyleChoice& style, ModuleKind module) {
  if (style.kind == StyleKind::sequence_parallel) return {shard(style.dim), shard(style.dim), shard(style.dim)};
  const Row& row = row_of(style.kind, module);
  return {style.input.value_or(row.given), row.computed_with, row.gradient};
}

ValueReading output_reading(const StyleChoice& style, ModuleKind module) {
  if (style.kind == StyleKind::sequence_parallel) return {shard(style.dim), shard(style.dim), shard(style.dim)};
  const Row& row = row_of(style.kind, module);
  const Placement returned = style.output.value_or(row.returned);
  return {row.computed, returned, returned.is_partial() ? replicate() : returned};
}

bool keeps_sharded(const StyleChoice& style) {
  const bool by_default = style.kind == StyleKind::sequence_parallel || style.kind == StyleKind::prepare_input;
  return style.keep_sharded.value_or(by_default);
}

std::optional<ParameterReading> parameter_reading(const StyleChoice& style, ModuleKind module, std::string_view name) {
  switch (style.kind) {
    case StyleKind::colwise:
    case StyleKind::rowwise: {
      const Row& row = row_of(style.kind, module);
      return ParameterReading{name == "bias" ? row.bias : row.weight, false};
    }
    case StyleKind::sequence_parallel:
      return ParameterReading{replicate(), true};
    case StyleKind::prepare_input:
    case StyleKind::prepare_output:
      return {};
  }
  return {};
}

Placement counted_from_front(Placement placement, int num_dims) {
  if (!placement.is_shard()) return placement;
  if (placement.dim < -num_dims || placement.dim >= num_dims)
    throw Error(str(to_text(placement), " of a tensor of ", num_dims, " dims"), "give a dim of the tensor");
  if (placement.dim < 0) placement.dim += num_dims;
  return placement;
}

}  // namespace lockstep::plan
