// What each style of tensor_parallel does to the inputs, outputs and parameters of a module, read from the documents
// and independently of the engine.
//
//   style, module      parameters            input computed with   its gradient   output computed
//   colwise Linear     weight, bias Shard(0) Replicate             Partial        Shard(-1)
//   colwise Embedding  weight Shard(1)       Replicate             none           Shard(-1)
//   rowwise Linear     weight Shard(1)       Shard(-1)             Shard(-1)      Partial
//   rowwise Embedding  weight Shard(0)       Replicate             none           Partial
//   sequence_parallel  all Replicate         Shard(dim)            Shard(dim)     Shard(dim)
//
// A plain input of colwise is replicated, and one of rowwise is Shard(-1), unless the style states it. An output of
// colwise stays Shard(-1), and one of rowwise becomes Replicate, unless the style states it. The gradients of the
// parameters of sequence_parallel are Partial: each rank has used them for its part of the sequence.
// prepare_input and prepare_output state all placements and distribute no parameter.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/layout/placement.hpp"

namespace lockstep::plan {

enum class StyleKind { colwise, rowwise, sequence_parallel, prepare_input, prepare_output };
enum class ModuleKind { linear, embedding, other };

// A style as the scenario states it. A negative dim of a placement counts from the last.
struct StyleChoice {
  StyleKind kind = StyleKind::colwise;
  std::optional<layout::Placement> input{}, output{};  // colwise and rowwise
  int dim = 1;                                         // sequence_parallel
  std::optional<bool> keep_sharded{};
};

struct ValueReading {
  layout::Placement given;     // of a plain tensor; a sharded one has its layout
  layout::Placement wanted;    // the module computes with it, or returns it
  layout::Placement gradient;  // in which the gradient of `wanted` arrives
};
// The first input of a module of colwise, rowwise and sequence_parallel.
ValueReading input_reading(const StyleChoice& style, ModuleKind module);
// Its output: `given` is computed, `wanted` returned.
ValueReading output_reading(const StyleChoice& style, ModuleKind module);
// Whether results stay sharded tensors: by default those of sequence_parallel and prepare_input.
bool keeps_sharded(const StyleChoice& style);

struct ParameterReading {
  layout::Placement placement;
  bool gradient_is_partial = false;
};
// Empty: the style leaves the parameter plain. `name`: within the module.
std::optional<ParameterReading> parameter_reading(const StyleChoice& style, ModuleKind module, std::string_view name);

// The placement with a dim from 0. Throws Error for a dim that a tensor of `num_dims` does not have.
layout::Placement counted_from_front(layout::Placement placement, int num_dims);

}  // namespace lockstep::plan
