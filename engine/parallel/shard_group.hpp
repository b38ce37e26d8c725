// A group of parameters that is gathered and reduced together: its states, the one gather and the one reduction.
//
//   state      the slots show        memory held               goes on to
//   sharded    the parts             parts                     gathering (begin_unshard)
//   kept       parts among fewer     parts, 1/n of the whole   gathering (begin_unshard); sharded (reshard)
//   gathering  as before             and two flat buffers      unsharded (finish_unshard)
//   unsharded  whole parameters      parts, whole parameters   sharded (reshard, when stale too); kept
//
// Only move_to() changes the state. Gathers run on streams of their own and compute waits for events of them; what
// outlives a phase (whole parameters, gradients) is memory of the compute stream, what does not is memory of the stream
// that fills it. engine/parallel's page says who waits for whom.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/shard_context.hpp"
#include "engine/parallel/shard_parameter.hpp"

namespace lockstep::parallel {

enum class GroupState { sharded, kept, gathering, unsharded };
const char* name_of(GroupState state);

struct GroupSettings {
  ShardMesh mesh;
  ReshardAfterForward reshard_after_forward;
  Offload offload = Offload::none;
  MixedPrecision mixed_precision;
  device::Device device;  // where it computes
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

  // Before each gather and at the first forward: takes over what was put in the slots, checks types and memory.
  void adopt_slots();
  std::vector<std::string> names_on_meta() const;

  // ---- gather ----
  // Issues the gather; nothing when it is under way or made. `after_compute`: the parts may have been written by what
  // the compute stream was given so far.
  void begin_unshard(bool after_compute = false);
  // Compute goes on with whole parameters. `keep_buffers`: they are freed with the next gather, so that this one does
  // not hold up a gather that follows at once.
  void finish_unshard(bool keep_buffers = false);
  void reshard();
  void reshard_after_forward();
  void drop_unused_gather();

  // ---- reduction ----
  // When a backward has left the group, and at its end: adds up what has come, and reduces what is complete then when
  // the flags ask for it.
  void take_gradients(bool at_end);
  bool has_gradients() const;  // that a reduction would take
  void wait_for_reduction();   // compute, and the host for gradients that it gets
  void release_reduction();    // compute alone, to free what the reduction made
  // Whether a parameter that is trained got no gradient in the backward that ends, though gradients are reduced.
  bool end_backward();
  void forget_backward();  // of a backward that failed

  // ---- flags ----
  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;
  bool reshard_after_backward = true;
  bool is_root = false;
  std::optional<double> divide_factor;
  void set_reshard_after_forward(const ReshardAfterForward& value);

  std::vector<std::function<void()>> before_all_gather, before_reduce_scatter, before_all_reduce;
  std::vector<std::size_t> positions;  // of its forwards in the context's order, since the last backward

 private:
  // The parts that are kept after forward by few ranks: flat as a gather among these wants them, and as the slots show
  // them.
  struct Kept {
    std::vector<Tensor> pieces;
    device::Event written;
  };

  void move_to(GroupState next);
  bool offloads() const;
  DType original_type() const;
  DType compute_type() const;
  DType reduce_type() const;
  int ranks_to_keep() const;  // 0: all, or not at all
  comm::ProcessGroup& kept_group() const;
  void keep_parts(int ranks);
  // Of what parameters with extensions send, where it lies in a rank's flat buffer.
  struct SentTensor {
    Dims sizes;
    DType dtype;
    std::int64_t offset_bytes = 0;
  };
  struct SentParameter {
    std::vector<SentTensor> tensors;
    nn::Value metadata;
  };
  bool has_extensions() const;
  GatherSite site_of(std::size_t index) const;
  Tensor padded_part(std::size_t index) const;
  Tensor pack_extended();
  void unpack_extended(std::size_t index, const Tensor& gathered, const Tensor& memory);
  void fill_gather_input(const Tensor& input, const layout::FlatShards& flat);
  void on_gradient(std::size_t index, const Tensor& gradient);
  void take_fresh(ShardParameter& parameter, bool sync, DType type);

  struct Reduction;
  void reduce(const std::vector<std::size_t>& members);
  Tensor gradients_in_one(const Reduction& reduction, const layout::FlatShards& flat);
  void add_partial_sums(Reduction& reduction);
  void deliver(Reduction& reduction, device::Stream& stream);

  GroupSettings settings_;
  std::vector<ShardParameter> parameters_;
  std::vector<layout::CutParameter> cuts_;
  GroupState state_ = GroupState::sharded;
  std::optional<GatherBuffers> gather_;
  int gather_ranks_ = 0;
  std::vector<SentParameter> sent_;  // of the gather under way; empty without extensions
  Kept kept_;
  std::vector<Tensor> reduced_;  // scratch and partial sums that other streams may still use
  device::Event delivered_;      // after the reduction and what follows it
  bool host_waits_ = false;      // for gradients that go to the host
  std::size_t num_reduced_ = 0;  // parameters, in the backward that runs
};

}  // namespace lockstep::parallel
