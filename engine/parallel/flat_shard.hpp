// Flat sharding: the parameters of a unit are one flat tensor, of which every rank holds an equal chunk.
//
// A unit is a module with the parameters below it that no other unit, fully_shard, replicate or ignore list owns. One
// call makes a unit of each submodule of the given types, bottom-up, and one of the rest of the module. Each unit makes
// one all-gather before forward and, after resharding, before backward; and one reduce-scatter after backward, followed
// by one all-reduce over a replicate axis. The gradient of a parameter that got none is zero if another parameter of
// its unit got one.
//
//   flat_shard(model, {.unit_types = {"Block"}});
//
// Optimizers see the local stretch of each parameter, 1-d and possibly empty, under its own name; or, with
// `original_parameters` false, one flat parameter per unit, named `_flat_param`. engine/layout/flat_parameter.hpp shows
// the layout.
//
// After PyTorch's FullyShardedDataParallel. Departures: a hybrid mesh of one shard reduces over its replicas; a unit
// that an evaluation left unsharded is unsharded anew after the optimizer has changed its shards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/fully_shard.hpp"

namespace lockstep::parallel {

enum class FlatStrategy {
  full_shard,            // resharded after forward and after backward
  shard_grad_op,         // unsharded between forward and backward
  no_shard,              // every rank holds all parameters; gradients are all-reduced
  hybrid_shard,          // full_shard within the second mesh axis, replicated over the first
  hybrid_shard_grad_op,  // shard_grad_op within the second mesh axis, replicated over the first
};
std::string_view name_of(FlatStrategy strategy);

struct FlatPrecision {
  std::optional<DType> param{};   // of the all-gather and the computation
  std::optional<DType> reduce{};  // of the reduction; unset: the compute type
  std::optional<DType> buffer{};  // of the buffers; unset: as they are
  bool cast_forward_inputs = false;
  bool cast_root_forward_inputs = true;
  bool keep_low_precision_gradients = false;  // gradients of optimizers have the compute type
};

struct FlatShardOptions {
  std::optional<DeviceMesh> mesh{};  // 1-d; hybrid strategies: (replicate, shard)
  FlatStrategy strategy = FlatStrategy::full_shard;
  std::vector<std::string> unit_types{};  // submodules of these types become units
  Offload offload = Offload::none;
  FlatPrecision mixed_precision{};
  bool original_parameters = true;
  bool sync_module_states = false;       // parameters and buffers get the values of the first rank
  std::vector<nn::ModulePtr> ignored{};  // also the parameters that they share with other modules
  std::vector<Tensor> ignored_parameters{};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::before;
  int max_gathers_in_flight = 2;  // the host runs ahead of compute by at most so many units; 0: without limit
  bool forward_prefetch = false;  // gathers the unit that followed in the first forward
  std::optional<device::Device> device{};
  std::string name{};  // for log, events and messages; empty: the type of the module
};

struct FlatUnit {
  std::string name;
  nn::ModulePtr module;
};
// Returns the units, the outermost last. Parameters on meta get storage and their initial values first. Throws Error
// for a module that is sharded or replicated already, a mesh that does not fit the strategy, parameters of several
// types or of integers, parameters that are not contiguous or have a gradient, and a unit without `original_parameters`
// of which some parameters are frozen.
std::vector<FlatUnit> flat_shard(const nn::ModulePtr& module, const FlatShardOptions& options = {});
bool is_flat_sharded(const nn::ModulePtr& module);

// Clips the gradients of all parameters below the root by their global norm, and returns the norm before clipping, in
// the widest type of the gradients (float32 at least while it is computed). `kind`: 1, 2, 3, ... or infinity. All ranks
// call together: one all_reduce over the shard axis if a unit is sharded, also on ranks without a gradient, and one
// more per axis of tensor parallelism that shards. No gradients at all: 0. Throws Error for a module that is not the
// outermost sharded one, and while full parameters are summoned.
Tensor clip_flat_grad_norm(const nn::ModulePtr& root, double max_norm, double kind = 2.0);

}  // namespace lockstep::parallel
