#include "engine/state/full_state.hpp"

#include <functional>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_optimizer_state.hpp"
#include "engine/parallel/flat_state_dict.hpp"
#include "engine/state/optimizer_values.hpp"
#include "engine/state/tree.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

// The place of a tensor in a module or optimizer.
struct Target {
  Dims sizes;        // global
  LayoutPtr layout;  // null: plain
  device::Device device;
  std::optional<DType> dtype;  // of broadcast values; nullopt: that of rank 0's tensor
  device::Purpose purpose;
};
using FindTarget = std::function<std::optional<Target>(const std::string& key)>;

// This rank's shard of a full tensor, a view.
Tensor local_shard(const Tensor& full, const Target& target) {
  Tensor shard = local_shard_of(full, *target.layout);
  if (target.purpose != device::Purpose::optimizer || !defect_armed(Defect::optimizer_state_of_first_part)) [[likely]]
    return shard;
  const Dims sizes = shard.sizes();
  shard = full;
  for (int dim = 0; dim < sizes.size(); ++dim) shard = slice(shard, dim, 0, sizes[dim]);
  return shard;
}

// The tensor to load: this rank's shard if the target is sharded, else the full tensor.
Tensor shard_for(const Target& target, const Tensor& full) {
  const device::PurposeScope purpose(target.purpose);
  if (!target.layout) return target.purpose == device::Purpose::optimizer ? raw::to_device(full, target.device) : full;
  return make_sharded(raw::clone(local_shard(raw::to_device(full, target.device), target)), target.layout);
}

void check_sizes(const std::string& key, const Dims& sizes, const Target& target) {
  if (sizes == target.sizes) return;
  throw Error(str("`", key, "` has full sizes ", to_text(sizes), ", its place in the state ", to_text(target.sizes)),
              "give the full state dict of the same module or optimizer");
}

// This rank's shards of rank 0's tensors, and rank 0's `text`. Keys without a target get undefined tensors.
std::string broadcast_from_rank_0(std::vector<TreeTensor>& tensors, const std::string& text, const FindTarget& find) {
  comm::ProcessGroup& world = comm::world_group();
  Json mine = {{"text", text}, {"tensors", Json::array()}};
  for (const TreeTensor& entry : tensors) {
    const Dims& sizes = entry.tensor.sizes();
    mine["tensors"].push_back(
        {entry.key, name_of(entry.tensor.dtype()), std::vector<std::int64_t>(sizes.begin(), sizes.end())});
  }
  const Json first = Json::parse(comm::exchange(world, world.rank() == 0 ? mine.dump() : "", "full state").front());
  std::vector<TreeTensor> received;
  for (const Json& entry : first.at("tensors")) {
    const auto key = entry[0].get<std::string>();
    const Dims sizes(entry[2].get<std::vector<std::int64_t>>());
    const std::optional<Target> target = find(key);
    if (!target) {
      received.push_back({key, Tensor()});
      continue;
    }
    check_sizes(key, sizes, *target);
    const device::PurposeScope purpose(target->purpose);
    const Tensor value =
        empty(sizes, target->dtype.value_or(dtype_from_name(entry[1].get<std::string>())), target->device);
    if (world.rank() == 0) raw::copy_(value, tensors[received.size()].tensor);
    comm::Call call;
    call.family = comm::Family::checkpoint;
    call.owner = key;
    comm::broadcast(world, value, 0, call);
    // The full tensor is freed before the next one arrives.
    received.push_back({key, shard_for(*target, value)});
  }
  tensors = std::move(received);
  return first.at("text").get<std::string>();
}

void shard_all(std::vector<TreeTensor>& tensors, const FindTarget& find) {
  for (TreeTensor& entry : tensors) {
    if (!entry.tensor.defined() || entry.tensor.is_sharded()) continue;
    const std::optional<Target> target = find(entry.key);
    if (!target) continue;
    check_sizes(entry.key, entry.tensor.sizes(), *target);
    entry.tensor = shard_for(*target, entry.tensor);
  }
}

// ---- optimizers: the keys are "parameter/key" ----
std::string groups_text(const optim::Optimizer::StateDict& dict) {
  Json groups = Json::array();
  for (const auto& [names, options] : dict.groups) groups.push_back(text_of_group(names, options));
  return groups.dump();
}

FindTarget targets_of(optim::Optimizer& optimizer) {
  std::map<std::string, parallel::StateDictTarget> parameters;
  for (auto& [name, target] : parallel::optimizer_state_targets(optimizer)) parameters.emplace(name, target);
  return [parameters](const std::string& key) -> std::optional<Target> {
    const std::size_t slash = key.rfind('/');
    const auto at = parameters.find(key.substr(0, slash));
    if (at == parameters.end()) return std::nullopt;
    if (key.substr(slash + 1) == "step") return Target{{}, nullptr, {}, std::nullopt, device::Purpose::optimizer};
    const parallel::StateDictTarget& target = at->second;
    return Target{target.form.sizes, target.form.layout, target.device, std::nullopt, device::Purpose::optimizer};
  };
}

}  // namespace

nn::StateDict shard_state_dict(const nn::ModulePtr& root, const nn::StateDict& full, bool from_rank_0) {
  std::map<std::string, Target> own;
  for (const parallel::StateDictTarget& target : parallel::state_dict_targets(root))
    own[target.form.path] = {target.form.sizes, target.form.layout, target.device, target.dtype,
                             device::Purpose::parameter};
  const FindTarget find = [&own](const std::string& name) -> std::optional<Target> {
    const auto at = own.find(name);
    return at == own.end() ? std::nullopt : std::optional(at->second);
  };
  std::vector<TreeTensor> tensors;
  for (const auto& [name, tensor] : full) tensors.push_back({name, tensor});
  if (from_rank_0) broadcast_from_rank_0(tensors, "", find);
  shard_all(tensors, find);
  nn::StateDict shards;
  for (TreeTensor& entry : tensors) shards.emplace_back(entry.key, std::move(entry.tensor));
  return shards;
}

optim::Optimizer::StateDict shard_state_dict(optim::Optimizer& optimizer, const optim::Optimizer::StateDict& full,
                                             bool from_rank_0) {
  const NoGrad no_grad;
  const FindTarget find = targets_of(optimizer);
  std::vector<TreeTensor> tensors;
  for (const auto& [name, of_parameter] : full.state)
    for (const auto& [key, tensor] : of_parameter) tensors.push_back({str(name, "/", key), tensor});
  optim::Optimizer::StateDict dict;
  dict.groups = full.groups;
  if (from_rank_0) {
    dict.groups.clear();
    for (const Json& group : Json::parse(broadcast_from_rank_0(tensors, groups_text(full), find)))
      dict.groups.push_back(group_from_text(group.get<std::string>(), "the groups of rank 0"));
  }
  try {
    shard_all(tensors, find);
  } catch (const Error& error) {
    throw Error(str("load_state_dict into ", optimizer.type(), ": ", error.message()), error.remedy());
  }
  for (TreeTensor& entry : tensors) {
    if (!entry.tensor.defined()) continue;
    const std::size_t slash = entry.key.rfind('/');
    const std::string name = entry.key.substr(0, slash);
    if (dict.state.empty() || dict.state.back().first != name)
      dict.state.emplace_back(name, std::map<std::string, Tensor>());
    dict.state.back().second[entry.key.substr(slash + 1)] = std::move(entry.tensor);
  }
  return dict;
}

}  // namespace lockstep::state
