// State that the groups below one root share: the order of their forwards, the root of the running forward, and the
// buffers of all-gathers and reductions that other streams may still read.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/device/stream.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

class ShardGroup;
class ShardState;

// The streams of fully_shard on one device.
struct ShardStreams {
  explicit ShardStreams(device::Device device)
      : copy_in(device::stream(device, device::Role::copy_in)),
        all_gather(device::stream(device, device::Role::all_gather)),
        reduce_scatter(device::stream(device, device::Role::reduce_scatter)),
        all_reduce(device::stream(device, device::Role::all_reduce)) {}
  device::Stream& copy_in;
  device::Stream& all_gather;
  device::Stream& reduce_scatter;
  device::Stream& all_reduce;
};

// The flat buffers of an all-gather. After copy-out they stay allocated until the streams that own them wait for
// copy-out: only then may another launch reuse the memory.
struct GatherBuffers {
  Tensor input, output;
  comm::Work work;
  std::any metadata;  // of extensions; copy-out may read its tensors
  device::Event copied_out;
  void free(const ShardStreams& streams);
};

// The flat gradients that a reduce-scatter reads. They stay allocated until compute waits for it.
struct ReductionInput {
  Tensor flat;
  comm::Work work;
};

// Memory of unsharded parameters, and the moment after which compute no longer uses it.
struct UsedMemory {
  device::MemoryPtr memory;
  device::Event used;
};

struct ShardContext {
  ~ShardContext();  // frees the memory that other streams may still use after they have used it

  std::vector<std::weak_ptr<ShardState>> states;         // below the root, in pre-order
  const ShardState* forward_root = nullptr;              // of the running forward, or of one that failed
  std::uint64_t forward_call = 0;                        // nn::running_call() of that forward
  std::vector<std::weak_ptr<ShardGroup>> forward_order;  // of the forwards since the last backward
  std::vector<std::weak_ptr<ShardGroup>> first_forward;  // groups in the order in which its forwards began
  bool first_forward_is_complete = false;
  std::vector<const ShardGroup*> begun;  // groups whose forward has begun in the running forward of the root
  std::vector<device::Event> freed;      // after the last use of each group that was resharded, oldest first
  std::optional<device::Event> post_optim_event;
  bool is_last_backward = true;
  std::uint64_t callback_in = 0;  // the backward that will call the callback of its end; 0: none
  std::optional<GatherBuffers> gathered;
  std::vector<UsedMemory> used;                              // of flat-sharded groups that were resharded, oldest first
  std::vector<ReductionInput> reduction_inputs;              // oldest first
  std::vector<std::weak_ptr<ShardGroup>> reduction_outputs;  // groups whose outputs are allocated, oldest first

  std::vector<std::shared_ptr<ShardState>> living_states() const;
  bool in_forward() const;  // false after a forward that failed
  // At the end of a backward: throws CollectiveError on every rank if the ranks disagree on the parameters that got a
  // gradient.
  void agree_on_end() const;
  void free_gather_buffers(const ShardStreams& streams);
  // At the end of a forward or backward, whose groups compute `at`: what writes the shards later runs after the copies
  // and the unused all-gathers that still read them.
  void let_writers_wait_for_copy_in(device::Device at) const;
  // Before an all-gather: the host waits until fewer than `limit` of the resharded groups are still in use.
  void wait_for_freed(int limit);
  // All-gather waits until compute no longer uses the oldest memory and frees it, until `num_kept` are left. The next
  // all-gather keeps one, so that it need not wait for the group that computes before it.
  void free_used(const ShardStreams& streams, std::size_t num_kept);
  // Before a new reduction: compute waits for earlier ones and frees the memory that they no longer need.
  void free_reduction_inputs_for_next();
  void free_reduction_outputs_for_next(const std::shared_ptr<ShardGroup>& next);
  // At the end of a last backward.
  void free_reductions();
};

}  // namespace lockstep::parallel
