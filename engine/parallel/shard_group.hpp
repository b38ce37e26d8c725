// A group of parameters that are unsharded and reduced together: its states, its all-gather and its reduction. What it
// shards, and how, is behind GroupShards.
//
//   state                 the slots hold           memory of this rank           next state
//   sharded               sharded tensors          shards                        unsharding (begin_unshard)
//   sharded_post_forward  shards over fewer ranks  shards, and larger shards     unsharding (begin_unshard); sharded
//   unsharding            as before                and the buffers of a gather   unsharded (finish_unshard); sharded
//   unsharded             unsharded parameters     shards, and all parameters    sharded; sharded_post_forward
//
// After an evaluation or a backward, the slots of an unsharded flat-sharded group hold the shards.
// Each state owns its buffers; only move_to() changes the state. All-gathers and reductions run on their own streams,
// ordered by the waits of waits.hpp. Memory that outlives a phase (unsharded parameters, gradients) belongs to the
// compute stream. Other memory (flat buffers of an all-gather) belongs to the stream that fills it.
//
// Sources: shard_group.cpp (states), shard_gather.cpp (all-gather), shard_reduction.cpp (gradients).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/parallel/group_shards.hpp"
#include "engine/parallel/shard_context.hpp"

namespace lockstep::parallel {

enum class GroupState { sharded, sharded_post_forward, unsharding, unsharded };
const char* name_of(GroupState state);

// Reduces `among(n)` to yes or no where n is all ranks or one. Throws Error when n does not divide the shard axis.
ReshardAfterForward normalized(ReshardAfterForward how, int num_shards);

class ShardGroup : public std::enable_shared_from_this<ShardGroup> {
 public:
  explicit ShardGroup(std::shared_ptr<GroupShards> shards);
  ~ShardGroup();  // may wait for the peers: frees the memory of collectives in flight after them
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  std::shared_ptr<ShardContext> context;
  const GroupSettings& settings() const { return shards_->settings(); }
  GroupShards& shards() const { return *shards_; }
  const std::shared_ptr<GroupShards>& shared_shards() const { return shards_; }
  GroupState state() const { return static_cast<GroupState>(buffers_.index()); }
  const std::string& owner() const { return settings().owner; }

  // Before each all-gather and at the first forward: adopts tensors that were assigned to the slots. Throws Error when
  // their types differ or they are on another device than the group keeps its shards on.
  void adopt_slots() { shards_->adopt_slots(); }
  std::vector<std::string> names_on_meta() const;

  // ---- all-gather ----
  // Issues the all-gather unless it is issued already or the group is unsharded with fresh values. `after_compute`:
  // copy-in waits for the compute stream, which may have written the shards.
  void begin_unshard(bool after_compute = false);
  // Throws Error if a tensor was put in a slot of an unsharded group, of one that is being gathered, or of one that
  // keeps shards after forward. The slot holds the tensor of the group again.
  void refuse_replaced_leaves();
  // Later launches on compute see the unsharded parameters. `keep_buffers`: the flat buffers are freed with those of
  // the next all-gather, so that an all-gather that follows at once need not wait for this copy-out.
  void finish_unshard(bool keep_buffers = false);
  void reshard();
  void reshard_after_forward();
  // After a forward that no backward follows, and after a backward. The slots of a flat-sharded group that stays
  // unsharded show the shards and their gradients until the next forward or backward.
  void show_shards_until_next_use();
  bool has_unused_gather() const;
  // Whether an all-gather that has begun and is not finished reads the shards themselves, without copy-in.
  bool gathers_out_of_shards() const;
  void drop_unused_gather();

  // ---- reduction ----
  // When a backward has left the group (`at_end` false) and at its end (true): accumulates the new gradients, and
  // reduces those that are complete if gradients are synchronized.
  void take_gradients(bool at_end);
  bool awaits_gradients() const;  // whether this backward will reach a parameter (again)
  bool has_gradients() const;     // that a reduction would include
  void wait_for_reduction();      // compute waits, and the host for offloaded gradients
  void free_reduction_outputs();  // compute waits and frees the outputs
  // Whether a backward that has left the group reshards it.
  bool reshards_after_backward() const;
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
  void set_reshard_after_forward(const ReshardAfterForward& value) { reshard_after_forward_ = value; }

  std::vector<std::function<void()>> before_all_gather, before_reduce_scatter, before_all_reduce;
  std::vector<std::size_t> positions;  // of its forwards in the context's forward_order, since the last backward

 private:
  // ---- states, each with the buffers that it owns ----
  struct Sharded {};
  using PostForward = KeptShards;
  struct Unsharding {
    GatherBuffers buffers;
    int num_ranks = 1;                 // of the all-gather
    std::optional<KeptShards> source;  // the slots still hold these
    bool fills_slots = false;          // has begun to put the unsharded parameters there
  };
  struct Unsharded {
    bool shows_shards = false;  // the slots hold the shards
  };
  using Buffers = std::variant<Sharded, PostForward, Unsharding, Unsharded>;
  void move_to(Buffers next);

  bool shows_shards() const;
  bool holds_stale_values() const;
  bool reshards_after_forward() const;

  // ---- all-gather (shard_gather.cpp) ----
  comm::Work all_gather(GatherBuffers& buffers, const KeptShards* kept) const;
  comm::ProcessGroup& kept_group(int ranks) const;
  void free_unused_gather();

  // ---- reduction (shard_reduction.cpp) ----
  void on_gradient(std::size_t index, const Tensor& gradient);
  bool synchronizes_gradients() const;
  FullGradient sum_of(FullGradient a, FullGradient b) const;
  void make_addable(FullGradient& a, FullGradient& b) const;
  int num_ranks_of_mean() const;
  void accumulate_fresh(UnshardedParameter& parameter);
  void note_gradients_kept_back();
  void forget_gradient_kept_back(std::size_t index);

  struct Reduction;
  void reduce(ReductionPlan plan);
  Division division() const;
  comm::Call reduction_call(const ReductionPlan& plan) const;
  void reduce_scatter(Reduction& reduction);
  Tensor fill_input(const Reduction& reduction, device::Purpose purpose);
  void sum_over_replicate_axis(Reduction& reduction);
  void all_reduce(Reduction& reduction);
  void add_partial_sums(const Reduction& reduction);
  void deliver(Reduction& reduction, device::Stream& stream);
  void allocate_targets(Reduction& reduction) const;
  void write_targets(const Reduction& reduction);
  void offload_gradient(const Tensor& trained, const Tensor& gradient, device::Stream& stream);
  void let_other_gradients_wait(std::size_t index);

  std::shared_ptr<GroupShards> shards_;
  ReshardAfterForward reshard_after_forward_;
  Buffers buffers_;
  std::vector<Tensor> reduction_outputs_;          // outputs, casts and partial sums that other streams may still use
  device::Event delivered_;                        // after the last operation of the reduction
  bool host_waits_ = false;                        // for offloaded gradients
  std::vector<std::weak_ptr<TensorImpl>> hooked_;  // per trained tensor: the one with the hook that waits
  std::size_t num_reduced_ = 0;                    // parameters, in the running backward
};

}  // namespace lockstep::parallel
