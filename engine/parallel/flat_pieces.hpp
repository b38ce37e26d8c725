// Conversions between the stretches of a flat parameter and the two forms in which others know a parameter: in full,
// and as a piece, its Shard(0) over the mesh of the unit. For state dicts of models and optimizers.
//
// `part`: a parameter as FlatParameterShards::part_of gives it, in full but with the layout of tensor parallelism.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/nn/state_slots.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"
#include "engine/parallel/flat_units.hpp"

namespace lockstep::parallel {

// The sizes of the full parameter, over all axes.
Dims full_sizes(const FlatParameterShards& unit, std::size_t index);
// The layout of a piece, as fully_shard gives it, with the axes of tensor parallelism. The mesh of the unit shards.
LayoutPtr piece_layout(const FlatParameterShards& unit, std::size_t index);
// The layout of the flat parameter without the padding at its end. The mesh of the unit shards.
LayoutPtr chunk_layout(const FlatParameterShards& unit);
// The number of elements of this rank's chunk before the padding at the end.
std::int64_t local_length(const FlatParameterShards& unit);

// Copies. full_of: one all-gather per axis of tensor parallelism that shards.
Tensor full_of(const Tensor& part);
Tensor piece_of(const FlatParameterShards& unit, std::size_t index, const Tensor& part);
// The local tensor of the part, from a piece (one all-gather over the shard axis) and from a full parameter.
Tensor full_of_piece(const FlatParameterShards& unit, std::size_t index, const Tensor& piece);
Tensor local_of_full(const FlatParameterShards& unit, std::size_t index, const Tensor& full);
// Copies the stretch of this rank of a local tensor of the part into a chunk, which is laid out as the shard.
void write_stretch(const FlatParameterShards& unit, std::size_t index, const Tensor& chunk, const Tensor& local);

Tensor on_host(const Tensor& tensor);  // the tensor itself if it is there

// Whether the slot is the `_flat_param` of one of the units.
bool is_flat_slot(const std::vector<FlatUnitShards>& units, const nn::StateSlot& slot);

}  // namespace lockstep::parallel
