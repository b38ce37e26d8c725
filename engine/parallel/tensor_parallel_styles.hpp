// The styles of tensor_parallel, as plain values: how the parameters of a module are distributed over the mesh, and the
// placements of its inputs and outputs.
//
//   Style style = Colwise{.input = layout::shard(0)};
//
// Placements refer to a mesh of one axis. A negative dim counts from the last dim of the tensor. `keep_sharded`:
// whether results are sharded tensors; otherwise they are their local shards, plain tensors.
//
// The meaning is that of PyTorch's torch.distributed.tensor.parallel (ColwiseParallel, RowwiseParallel,
// SequenceParallel, PrepareModuleInput, PrepareModuleOutput).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/layout/placement.hpp"
#include "engine/nn/structure.hpp"

namespace lockstep::parallel {

// A Linear computes a part of the output features, an Embedding a part of the columns.
// Linear: weight and bias Shard(0). Embedding: weight Shard(1). Computes with a replicated input.
struct Colwise {
  layout::Placement input = layout::replicate();  // of a plain input
  layout::Placement output = layout::shard(-1);   // of the result
  bool keep_sharded = false;
};
// A Linear computes with a part of the input features, an Embedding with a part of the rows; the results are summed.
// Linear: weight Shard(1), bias Replicate. Embedding: weight Shard(0). A Linear computes with an input sharded along
// the last dim, an Embedding with a replicated one.
struct Rowwise {
  layout::Placement input = layout::shard(-1);
  layout::Placement output = layout::replicate();
  bool keep_sharded = false;
};
// A module that computes each position on its own (LayerNorm, RMSNorm, Dropout) gets inputs sharded along `dim`. All
// its parameters, and those of its submodules, are replicated.
struct SequenceParallel {
  int dim = 1;
  bool keep_sharded = true;
};
// A plain tensor is taken as the local shard under `given`; a sharded one has a layout. Then it is redistributed to
// `wanted`, or keeps its placement without one.
struct Conversion {
  layout::Placement given;
  std::optional<layout::Placement> wanted;
};
// Converts the inputs of a module. Its parameters stay as they are.
struct PrepareInput {
  std::vector<std::optional<Conversion>> positional;  // one per positional input, empty: unchanged; {}: all unchanged
  std::vector<std::pair<std::string, Conversion>> named;  // inputs with other names are unchanged
  bool keep_sharded = true;
};
// Converts the output of a module: a tensor, or a list with one item per conversion.
struct PrepareOutput {
  std::vector<std::optional<Conversion>> outputs;
  bool keep_sharded = false;
};
using Style = std::variant<Colwise, Rowwise, SequenceParallel, PrepareInput, PrepareOutput>;

// "colwise", "rowwise", "sequence_parallel", "prepare_input", "prepare_output".
std::string_view name_of(const Style& style);
// The placement of a parameter of a module under the style, empty if the style leaves it plain. `type`: of the module;
// `parameter`: its name within the module, or below it for sequence_parallel. Throws Error for a module of a type that
// the style does not support.
std::optional<layout::Placement> placement_of(const Style& style, std::string_view type, std::string_view parameter);
// The settings that `applied` of a module shows.
std::map<std::string, nn::Structure> settings_of(const Style& style);

}  // namespace lockstep::parallel
