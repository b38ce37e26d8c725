// A group of parameters that are unsharded and reduced together: its states, its all-gather and its reduction.
//
//   state                 the slots hold           memory of this rank           next state
//   sharded               sharded tensors          shards                        unsharding (begin_unshard)
//   sharded_post_forward  shards over fewer ranks  shards, and larger shards     unsharding (begin_unshard); sharded
//   unsharding            as before                and two flat buffers          unsharded (finish_unshard); sharded
//   unsharded             unsharded parameters     shards, and all parameters    sharded; sharded_post_forward
//
// Only move_to() changes the state. All-gathers and reductions run on their own streams, ordered by the waits of
// waits.hpp. Memory that outlives a phase (unsharded parameters, gradients) belongs to the compute stream. Other memory
// (flat buffers of an all-gather) belongs to the stream that fills it.
//
// Sources: shard_group.cpp (states), shard_gather.cpp (all-gather), shard_extension.cpp (all-gathers with extensions),
// shard_post_forward.cpp (shards kept after forward), shard_reduction.cpp (gradients).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/division.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/shard_context.hpp"
#include "engine/parallel/shard_parameter.hpp"

namespace lockstep::parallel {

enum class GroupState { sharded, sharded_post_forward, unsharding, unsharded };
const char* name_of(GroupState state);

// Reduces `among(n)` to yes or no where n is all ranks or one. Throws Error when n does not divide the shard axis.
ReshardAfterForward normalized(ReshardAfterForward how, int num_shards);

struct GroupSettings {
  ShardMesh mesh;
  ReshardAfterForward reshard_after_forward;
  Offload offload = Offload::none;
  MixedPrecision mixed_precision;
  device::Device device;  // where the group computes
  std::string owner;      // for log, events and messages
};

class ShardGroup : public std::enable_shared_from_this<ShardGroup> {
 public:
  ShardGroup(GroupSettings settings, std::vector<ShardParameter> parameters);
  ~ShardGroup();
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  std::shared_ptr<ShardContext> context;
  const GroupSettings& settings() const { return settings_; }
  std::vector<ShardParameter>& parameters() { return parameters_; }
  GroupState state() const { return state_; }
  const std::string& owner() const { return settings_.owner; }

  // Before each all-gather and at the first forward: adopts tensors that were assigned to the slots. Throws Error when
  // their types differ or they are on another device than the group keeps its shards on.
  void adopt_slots();
  std::vector<std::string> names_on_meta() const;

  // ---- all-gather ----
  // Issues the all-gather unless it is issued already or the group is unsharded with fresh values. `after_compute`:
  // copy-in waits for the compute stream, which may have written the shards.
  void begin_unshard(bool after_compute = false);
  // Later launches on compute see the unsharded parameters. `keep_buffers`: the flat buffers are freed with those of
  // the next all-gather, so that an all-gather that follows at once need not wait for this copy-out.
  void finish_unshard(bool keep_buffers = false);
  void reshard();
  void reshard_after_forward();
  bool has_unused_gather() const;
  void drop_unused_gather();

  // ---- reduction ----
  // When a backward has left the group (`at_end` false) and at its end (true): accumulates the new gradients, and
  // reduces those that are complete if gradients are synchronized.
  void take_gradients(bool at_end);
  bool has_gradients() const;     // that a reduction would include
  void wait_for_reduction();      // compute waits, and the host for offloaded gradients
  void free_reduction_outputs();  // compute waits and frees the outputs
  // Returns whether a parameter that requires a gradient got none in the ending backward, although gradients are
  // synchronized.
  bool end_backward();
  void forget_backward();  // after a backward that failed

  // ---- flags ----
  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;
  bool reshard_after_backward = true;
  bool is_root = false;
  std::optional<double> divide_factor;
  void set_reshard_after_forward(const ReshardAfterForward& value);

  std::vector<std::function<void()>> before_all_gather, before_reduce_scatter, before_all_reduce;
  std::vector<std::size_t> positions;  // of its forwards in the context's forward_order, since the last backward

 private:
  void move_to(GroupState next);
  bool offloads() const;
  DType original_type() const;
  DType compute_type() const;
  DType reduce_type() const;
  bool shards_changed() const;
  bool holds_stale_values() const;
  bool reshards_after_forward() const;

  // ---- all-gather (shard_gather.cpp) ----
  void fill_gather_input(const Tensor& input, const layout::FlatShards& flat) const;
  std::int64_t input_offset(const layout::FlatShards& flat, std::size_t index) const;
  Tensor make_gather_input(const layout::FlatShards& flat);
  void issue_all_gather(GatherBuffers& buffers, int num_ranks);
  layout::FlatShards gather_plan() const;

  // ---- shards kept after forward among fewer ranks (shard_post_forward.cpp) ----
  struct Kept {
    std::vector<Tensor> pieces;  // per parameter, in the layout of the all-gather's input
    device::Event written;
  };
  int ranks_to_keep() const;  // 0: none are kept
  comm::ProcessGroup& kept_group() const;
  void keep_shards(int ranks);
  Tensor copy_kept_piece(std::size_t index, int rank, int shards_per_rank) const;

  // ---- all-gathers with extensions (shard_extension.cpp) ----
  struct SentTensor {  // one tensor that a parameter sends
    Dims sizes;
    DType dtype;
    std::int64_t offset_bytes = 0;  // in the flat buffer of a rank
  };
  struct SentParameter {
    std::vector<SentTensor> tensors;
    nn::Structure metadata;
  };
  bool has_extensions() const;
  GatherSite site_of(std::size_t index) const;
  Tensor padded_shard(std::size_t index) const;
  std::vector<Tensor> tensors_to_send(std::size_t index);
  Tensor pack_extended();
  void unpack_extended(std::size_t index, const Tensor& gathered, const Tensor& memory);
  std::vector<Tensor> gathered_tensors(std::size_t index, const Tensor& gathered) const;

  // ---- reduction (shard_reduction.cpp) ----
  void on_gradient(std::size_t index, const Tensor& gradient);
  bool synchronizes_gradients() const;
  DType accumulation_type() const;
  bool takes_part(const ShardParameter& parameter) const;
  FullGradient sum_of(FullGradient a, FullGradient b) const;
  void make_addable(FullGradient& a, FullGradient& b) const;
  int num_ranks_of_mean() const;
  void accumulate_fresh(ShardParameter& parameter);

  struct Reduction;
  void reduce(const std::vector<std::size_t>& members);
  Reduction plan_reduction(const std::vector<std::size_t>& members) const;
  comm::Call reduction_call(const Reduction& reduction) const;
  void reduce_scatter(Reduction& reduction);
  Tensor copy_in_gradients(const Reduction& reduction);
  void sum_over_replicate_axis(Reduction& reduction);
  void all_reduce(Reduction& reduction);
  void add_partial_sums(const Reduction& reduction);
  void deliver(Reduction& reduction, device::Stream& stream);
  void allocate_targets(Reduction& reduction) const;
  void write_targets(const Reduction& reduction);
  void offload_gradient(const ShardParameter& parameter, const Tensor& gradient, device::Stream& stream);

  GroupSettings settings_;
  std::vector<ShardParameter> parameters_;
  std::vector<layout::ShardedParameter> cuts_;
  GroupState state_ = GroupState::sharded;
  std::optional<GatherBuffers> gather_;
  int gather_ranks_ = 0;             // of an all-gather of kept shards; 0: all ranks of the shard axis
  std::vector<SentParameter> sent_;  // of the issued all-gather; empty without extensions
  Kept kept_;
  std::vector<Tensor> reduction_outputs_;  // outputs, casts and partial sums that other streams may still use
  device::Event delivered_;                // after the last operation of the reduction
  bool host_waits_ = false;                // for offloaded gradients
  std::size_t num_reduced_ = 0;            // parameters, in the running backward
};

// extend_gather() searches the registered groups that are alive.
void register_group(const std::shared_ptr<ShardGroup>& group);

}  // namespace lockstep::parallel
