// What the groups below one root share: the order of their forwards, which root runs, and the buffers of gathers and
// reductions that other streams may still read.
#pragma once

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

// The streams of sharding on one device.
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

// The buffers of a gather, kept from its copy-out on until its streams have learnt of that: only then may their memory
// be given out again.
struct GatherBuffers {
  Tensor input, output;
  comm::Work work;
  device::Event copied_out;
  void free(const ShardStreams& streams);
};

// The flat gradients of a reduction, kept until compute has waited for it: one reduction is in flight at a time.
struct ReductionInput {
  Tensor flat;
  comm::Work work;
  void free();
};

struct ShardContext {
  std::vector<std::weak_ptr<ShardState>> states;         // below the root, in pre-order
  const ShardState* forward_root = nullptr;              // of the forward that runs
  std::vector<std::weak_ptr<ShardGroup>> forward_order;  // of the forwards since the last backward
  std::optional<device::Event> post_optim_event;
  bool is_last_backward = true;
  std::uint64_t callback_in = 0;  // the backward whose end it waits for
  std::optional<GatherBuffers> gathered;
  std::optional<ReductionInput> reduction;
  std::vector<std::weak_ptr<ShardGroup>> reduced;  // groups whose reductions hold memory, the latest last
  std::vector<ReductionInput> kept_inputs;         // of a seeded defect

  std::vector<std::shared_ptr<ShardState>> living_states() const;
  void agree_on_end() const;
  void free_gather_buffers(const ShardStreams& streams);
  void free_reduction_input();
  // What a reduction made is freed when that of the group after the next begins.
  void begin_reduction(const std::shared_ptr<ShardGroup>& group);
};

}  // namespace lockstep::parallel
