#include "engine/parallel/shard_context.hpp"

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/parallel/shard_group.hpp"

namespace lockstep::parallel {

void GatherBuffers::free(const ShardStreams& streams) {
  // The input was taken on the copy-in stream and read by the gather, the output taken on the gather's stream and read
  // by the copy-out, which ran after both.
  if (!defect_armed(Defect::shard_input_freed_early)) [[likely]]
    streams.copy_in.wait(copied_out);
  if (!defect_armed(Defect::shard_output_freed_early)) [[likely]]
    streams.all_gather.wait(copied_out);
  input = output = Tensor();
  work = comm::Work();
}

void ReductionInput::free() {
  if (!defect_armed(Defect::shard_reduction_input_freed_early)) [[likely]]
    work.wait();
  flat = Tensor();
  work = comm::Work();
}

std::vector<std::shared_ptr<ShardState>> ShardContext::living_states() const {
  std::vector<std::shared_ptr<ShardState>> living;
  for (const auto& state : states)
    if (auto alive = state.lock()) living.push_back(std::move(alive));
  return living;
}

void ShardContext::free_gather_buffers(const ShardStreams& streams) {
  if (!gathered) return;
  gathered->free(streams);
  gathered.reset();
}

void ShardContext::begin_reduction(const std::shared_ptr<ShardGroup>& group) {
  if (defect_armed(Defect::shard_reduced_parts_kept)) [[unlikely]]
    return;
  if (reduced.size() >= 2) {
    if (const auto before = reduced.front().lock()) before->release_reduction();
    reduced.erase(reduced.begin());
  }
  reduced.push_back(group);
}

void ShardContext::free_reduction_input() {
  if (!reduction) return;
  if (defect_armed(Defect::shard_reduction_inputs_kept) && in_backward() && backward_id() == callback_in) [[unlikely]]
    kept_inputs.push_back(*reduction);
  else
    kept_inputs.clear();
  reduction->free();
  reduction.reset();
}

}  // namespace lockstep::parallel
