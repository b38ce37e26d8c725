#include "engine/parallel/shard_context.hpp"

#include <algorithm>
#include <exception>
#include <limits>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/shard_group.hpp"
#include "engine/parallel/shard_state.hpp"
#include "engine/parallel/waits.hpp"

namespace lockstep::parallel {

namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

// How many reductions may keep their flat input allocated when the next one begins.
std::size_t num_kept_inputs() { return defect_armed(Defect::shard_reduction_inputs_kept) ? unlimited : 0; }
// The same for their outputs: compute need not wait for the previous reduction, only for the one before it.
std::size_t num_kept_outputs() { return defect_armed(Defect::shard_reduced_parts_kept) ? unlimited : 1; }

void free_inputs(std::vector<ReductionInput>& inputs, std::size_t num_kept) {
  while (inputs.size() > num_kept) {
    const ReductionInput& oldest = inputs.front();
    wait(WaitEdge::compute_for_previous_reduce_scatter, device::current_stream(oldest.flat.device()), oldest.work);
    inputs.erase(inputs.begin());
  }
}

}  // namespace

void GatherBuffers::free(const ShardStreams& streams) {
  // Copy-in allocated the input and the metadata. The all-gather read the input and allocated the output. Copy-out,
  // which ran after both, read the output and the metadata.
  wait(WaitEdge::copy_in_for_copy_out, streams.copy_in, copied_out);
  wait(WaitEdge::all_gather_for_copy_out, streams.all_gather, copied_out);
  input = output = Tensor();
  metadata.reset();
  work = comm::Work();
}

ShardContext::~ShardContext() {
  try {
    free_inputs(reduction_inputs, 0);
    if (gathered) free_gather_buffers(ShardStreams(gathered->input.device()));
    if (!used.empty()) free_used(ShardStreams(used.front().memory->device()), 0);
  } catch (const std::exception&) {
    // A collective that has failed reads nothing any more.
  }
}

std::vector<std::shared_ptr<ShardState>> ShardContext::living_states() const {
  std::vector<std::shared_ptr<ShardState>> living;
  for (const auto& state : states)
    if (auto alive = state.lock()) living.push_back(std::move(alive));
  return living;
}

bool ShardContext::in_forward() const { return forward_root && forward_call == nn::running_call(); }

void ShardContext::let_writers_wait_for_copy_in(device::Device at) const {
  auto living = living_states();
  // A prefetch hint may name a group of another root.
  for (const ShardStatePtr& state : living_states())
    for (const auto* hints : {&state->forward_prefetch, &state->backward_prefetch})
      for (const auto& hint : *hints)
        if (auto hinted = hint.lock()) living.push_back(std::move(hinted));
  const auto any_group = [&living](bool (*has)(const ShardGroup&)) {
    return std::any_of(living.begin(), living.end(),
                       [has](const auto& state) { return state->group() && has(*state->group()); });
  };
  const ShardStreams streams(at);
  device::Stream& compute = device::current_stream(at);
  // A prefetch hint may name a group that has run already: no module waits for its all-gather.
  if (any_group([](const ShardGroup& group) { return group.state() == GroupState::unsharding; }))
    wait(WaitEdge::compute_for_unused_copy_in, compute, streams.copy_in);
  if (any_group([](const ShardGroup& group) { return group.gathers_out_of_shards(); }))
    wait(WaitEdge::compute_for_unused_copy_in, compute, streams.all_gather);
  // A backward need not follow a forward, and need not give the host a gradient that it waits for.
  if (any_group([](const ShardGroup& group) { return group.shards().offloads(); }))
    wait(WaitEdge::host_for_copy_in, device::current_stream(device::Device{}), streams.copy_in.record());
}

void ShardContext::free_gather_buffers(const ShardStreams& streams) {
  if (!gathered) return;
  gathered->free(streams);
  gathered.reset();
}

void ShardContext::free_used(const ShardStreams& streams, std::size_t num_kept) {
  while (used.size() > num_kept) {
    wait(WaitEdge::all_gather_for_unsharded_use, streams.all_gather, used.front().used);
    used.erase(used.begin());
  }
}

void ShardContext::wait_for_freed(int limit) {
  if (limit <= 0 || defect_armed(Defect::flat_gather_limit_ignored)) return;
  while (freed.size() >= static_cast<std::size_t>(limit)) {
    freed.front().synchronize();
    freed.erase(freed.begin());
  }
}

void ShardContext::free_reduction_inputs_for_next() { free_inputs(reduction_inputs, num_kept_inputs()); }

void ShardContext::free_reduction_outputs_for_next(const std::shared_ptr<ShardGroup>& next) {
  while (reduction_outputs.size() > num_kept_outputs()) {
    if (const auto oldest = reduction_outputs.front().lock()) oldest->free_reduction_outputs();
    reduction_outputs.erase(reduction_outputs.begin());
  }
  reduction_outputs.push_back(next);
}

void ShardContext::free_reductions() {
  reduction_outputs.clear();  // each group has waited for its own and freed it
  free_inputs(reduction_inputs, 0);
}

}  // namespace lockstep::parallel
