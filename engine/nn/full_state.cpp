#include "engine/nn/full_state.hpp"

#include <map>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

// The names and sizes of rank 0's state dict, in its order, on every rank.
std::vector<std::pair<std::string, std::string>> entries_of_rank_0(comm::ProcessGroup& world, const StateDict& full) {
  std::string mine;
  if (world.rank() == 0)
    for (const auto& [name, tensor] : full) mine += str(name, "\n", to_text(tensor.sizes()), "\n");
  const std::string text = comm::exchange(world, mine, "model state").front();
  std::vector<std::pair<std::string, std::string>> entries;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t middle = text.find('\n', at), end = text.find('\n', middle + 1);
    entries.emplace_back(text.substr(at, middle - at), text.substr(middle + 1, end - middle - 1));
    at = end + 1;
  }
  return entries;
}

[[noreturn]] void wrong_size(const std::string& name, const std::string& sizes, const Tensor& target) {
  throw Error(
      str("`", name, "` has sizes ", sizes, " as a whole, its place in the module ", to_text(global_sizes(target))),
      "give the full state dict of the same module");
}

// The tensor to load into `target`: this rank's shard of `full` if `target` is sharded.
Tensor shard_for(const Tensor& target, const Tensor& full) {
  if (!target.is_sharded()) return full;
  return make_sharded(raw::clone(local_shard_of(full, *target.layout())), target.layout());
}

}  // namespace

StateDict shard_state_dict(const ModulePtr& root, const StateDict& full, bool from_rank_0) {
  std::map<std::string, Tensor> targets;
  for (const auto& [name, tensor] : state_dict(root)) targets[name] = tensor;
  std::map<std::string, Tensor> given;
  for (const auto& [name, tensor] : full) given[name] = tensor;
  StateDict shards;
  if (!from_rank_0) {
    for (const auto& [name, tensor] : full) {
      const auto target = targets.find(name);
      if (target != targets.end() && !tensor.is_sharded() && tensor.sizes() != global_sizes(target->second))
        wrong_size(name, to_text(tensor.sizes()), target->second);
      const bool unchanged = target == targets.end() || tensor.is_sharded();
      shards.emplace_back(name, unchanged ? tensor : shard_for(target->second, tensor));
    }
    return shards;
  }
  comm::ProcessGroup& world = comm::world_group();
  for (const auto& [name, sizes] : entries_of_rank_0(world, full)) {
    const auto target = targets.find(name);
    if (target == targets.end()) {
      shards.emplace_back(name, Tensor());
      continue;
    }
    const Tensor& to = target->second;
    if (sizes != to_text(global_sizes(to))) wrong_size(name, sizes, to);
    Tensor value = empty(global_sizes(to), to.dtype(), to.device());
    if (world.rank() == 0) raw::copy_(value, given[name]);
    comm::Call call;
    call.family = comm::Family::checkpoint;
    call.owner = name;
    comm::broadcast(world, value, 0, call);
    shards.emplace_back(name, shard_for(to, value));
  }
  return shards;
}

}  // namespace lockstep::nn
