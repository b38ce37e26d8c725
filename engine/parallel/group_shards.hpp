// The tensors that a group shards. Sharding per parameter and flat sharding differ in them only: ShardGroup has the
// states, the collectives, the streams and the order; an implementation of this interface has the tensors.
//
//   PerParameterShards   each parameter is sharded along a dim (fully_shard)
//   FlatParameterShards  all parameters are one flat tensor, of which each rank holds a chunk (flat_shard)
//
// An all-gather sends gather_input() of each rank, in rank order, into gather_output(), and install_unsharded() puts
// the parameters that it holds into the slots. A reduction sends what fill_reduction_input() wrote; the plan says where
// the shard of each trained tensor lies in the sum.
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/stream.hpp"
#include "engine/parallel/division.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/reduction_plan.hpp"
#include "engine/parallel/shard_context.hpp"
#include "engine/parallel/shard_mesh.hpp"
#include "engine/parallel/unsharded_parameter.hpp"

namespace lockstep::parallel {

struct GroupSettings {
  ShardMesh mesh;
  ReshardAfterForward reshard_after_forward;
  Offload offload = Offload::none;
  MixedPrecision mixed_precision;
  device::Device device;  // where the group computes
  std::string owner;      // for log, events and messages
  // A backward without gradient synchronization leaves the group unsharded for the next microbatch.
  bool stays_unsharded_without_sync = false;
  // The host runs ahead of compute by at most so many unsharded groups; 0: without limit.
  int max_gathers_in_flight = 0;
  std::weak_ptr<nn::Module> module{};  // the first of the group, for events
};

// Whether the shards are on the host and the group computes elsewhere.
bool offloads(const GroupSettings& settings);
// Memory on the host for a shard or a gradient of an offloading group. It is pinned for the group's device if the
// offload says so.
Tensor empty_offloaded(const GroupSettings& settings, const Dims& sizes, DType dtype);

// A shard at one moment: its memory, and how often that has been written.
struct ShardVersion {
  std::weak_ptr<const Storage> memory;  // compared by owner: a freed address may be used again
  std::uint64_t writes = 0;
  friend bool operator==(const ShardVersion& a, const ShardVersion& b) {
    return a.writes == b.writes && !a.memory.owner_before(b.memory) && !b.memory.owner_before(a.memory);
  }
};
inline ShardVersion version_of(const Tensor& shard) { return {shard.storage(), shard.storage()->version()}; }

// Shards that `ranks` consecutive ranks keep among them after forward.
struct KeptShards {
  int ranks = 0;
  std::vector<Tensor> pieces;
  std::vector<Tensor> shown;  // per parameter: the tensor in its slots
  device::Event written;
};

class GroupShards {
 public:
  explicit GroupShards(GroupSettings settings) : settings_(std::move(settings)) {}
  virtual ~GroupShards() = default;
  GroupShards(const GroupShards&) = delete;
  GroupShards& operator=(const GroupShards&) = delete;

  const GroupSettings& settings() const { return settings_; }
  bool offloads() const { return parallel::offloads(settings_); }
  virtual DType original_type() const = 0;
  DType compute_type() const;
  DType reduce_type() const;
  virtual DType accumulation_type() const = 0;                     // of gradients without synchronization
  virtual DType gradient_type() const { return original_type(); }  // of the gradients that optimizers see

  // ---- parameters, as modules compute with them ----
  virtual std::size_t num_parameters() const = 0;
  virtual UnshardedParameter& parameter(std::size_t index) = 0;
  const UnshardedParameter& parameter(std::size_t index) const;
  // The tensor in the slots of the parameter while the group is sharded.
  virtual const Tensor& shown(std::size_t index) const = 0;
  // Adopts tensors that were assigned to the slots. Throws Error when they do not fit.
  virtual void adopt_slots() = 0;
  // While the parameters are unsharded: throws Error if a slot of the shards themselves holds another tensor.
  virtual void refuse_replaced_shards() {}
  // Whether the shards have changed since the last gather_input().
  virtual bool shards_changed() const = 0;

  // ---- all-gather ----
  // The flat input: 1-d and contiguous. `kept`: shards kept after forward, or null. Runs on copy-in.
  virtual Tensor gather_input(const KeptShards* kept) = 0;
  // Memory for the inputs of `num_ranks` ranks; on a mesh that does not shard the output itself. Runs on all-gather.
  virtual Tensor gather_output(const Tensor& input, int num_ranks) = 0;
  // Puts the unsharded parameters into the slots. `gathered`: the flat output of `num_ranks` ranks. Runs on compute.
  // Returns whether the parameters have taken over the memory of the output.
  virtual bool install_unsharded(const Tensor& gathered, int num_ranks) = 0;
  // What copy-out has read, or would have read, of the extensions of the last all-gather; empty without extensions.
  virtual std::any take_gather_metadata() { return {}; }
  // After an evaluation or a backward: puts the shards into the slots, while the unsharded parameters stay in memory.
  // Returns whether it did. show_unsharded() puts the unsharded parameters back.
  virtual bool show_shards() { return false; }
  virtual void show_unsharded() {}
  // Puts the shards into the slots and frees the unsharded parameters, or returns their memory if it belongs to
  // all-gather, which must wait for compute before it frees the memory.
  virtual std::optional<UsedMemory> install_shards() = 0;
  // Puts tensors sharded over `ranks` consecutive ranks into the slots and frees the unsharded parameters.
  virtual KeptShards install_kept(int ranks) = 0;

  // ---- reduction ----
  // Whether full gradients follow the trained tensors: a parameter that was frozen after its forward gets none, and
  // zero_grad drops those that wait for synchronization.
  virtual bool gradients_follow_trained() const { return false; }
  virtual std::size_t num_trained() const = 0;  // tensors that optimizers update
  virtual const Tensor& trained(std::size_t index) const = 0;
  virtual Tensor& partial_sum(std::size_t index) = 0;  // of its gradient: reduced, but not yet all-reduced
  virtual Division division(const ShardedMean& mean) const = 0;
  // `complete`: per parameter, whether this backward adds nothing to its gradient any more. `all_reduces`: whether
  // partial sums are complete after it.
  virtual ReductionPlan plan_reduction(const std::vector<bool>& complete, bool all_reduces) const = 0;
  // Writes the accumulated gradients of the scattered members to the flat input and forgets them. Runs on compute.
  virtual void fill_reduction_input(const ReductionPlan& plan, const Tensor& input) = 0;

 private:
  GroupSettings settings_;
};

}  // namespace lockstep::parallel
