// The full parameters of a flat-sharded model, for a while: to read, to change or to save them.
//
//   SummonedParameters summoned(model, {.gradients = true});
//   ... named_parameters(model) lists full parameters, with full gradients ...
//   summoned.finish();   // writes changes back to the shards
//
// After PyTorch's FullyShardedDataParallel.summon_full_params. Departure: without `writeback` changes are lost on a
// mesh that does not shard, too.
#pragma once

#include <memory>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/parallel/fully_shard.hpp"

namespace lockstep::parallel {

class FlatParameterShards;

struct SummonOptions {
  bool writeback = true;    // finish() copies parameters, and with `gradients` their gradients, to the shards
  bool gradients = false;   // gradients too
  bool rank0_only = false;  // only the first rank of each shard axis has full parameters; needs writeback false
  bool offload = false;     // the full parameters are on the host
  bool recurse = true;      // of all units below the module, too; else only of the module's own unit, if it is one
};

class SummonedParameters {
 public:
  // All ranks call together, outside forward and backward. One all-gather per sharded unit, with gradients two, and one
  // all_reduce that agrees on which parameters have a gradient. The parameters have their original type. Throws Error
  // during forward or backward, for a module of which a unit is summoned already, and for rank0_only with writeback.
  SummonedParameters(const nn::ModulePtr& module, const SummonOptions& options);
  ~SummonedParameters();  // the shards come back; without finish() nothing is written
  SummonedParameters(const SummonedParameters&) = delete;
  SummonedParameters& operator=(const SummonedParameters&) = delete;

  // Throws Error, before a value is written, when a parameter was replaced by one of other sizes, or a shared one in
  // some of its places only.
  void finish();

 private:
  void restore();
  SummonOptions options_;
  std::vector<std::shared_ptr<FlatParameterShards>> units_;
};

}  // namespace lockstep::parallel
