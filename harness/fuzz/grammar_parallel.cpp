// Which API distributes which modules, on which mesh, with which flags.
#include <algorithm>

#include "engine/core/error.hpp"
#include "harness/fuzz/grammar.hpp"

namespace lockstep::fuzz {

namespace {

bool is_below(const std::string& path, const std::string& parent) { return path.starts_with(parent + "."); }

void derive_mesh(Chooser choose, int world_size, Parallel& parallel) {
  parallel.data_ranks = world_size;
  if (world_size < 4 || world_size % 2 != 0 || !choose.chance("hybrid", 35)) return;
  const int shards = world_size == 4 ? 2 : choose.chance("three shards", 40) ? 3 : 2;
  parallel.shape = str("[", world_size / shards, ", ", shards, "]");
  parallel.names = "[replicate, shard]";
  parallel.neighbours = shards;
}

std::string derive_reshard(Chooser choose, int shard_ranks) {
  switch (choose.pick("reshard", {50, 12, 22, shard_ranks >= 4 && shard_ranks % 2 == 0 ? 16 : 0})) {
    case 1:
      return "true";
    case 2:
      return "false";
    case 3:
      return "2";
    default:
      return "";
  }
}

// A group for some of the units, children before their parents, then one for the model itself.
void derive_groups(Chooser choose, const DerivedModel& derived, Parallel& parallel) {
  const int shard_ranks = parallel.neighbours > 0 ? parallel.neighbours : parallel.data_ranks;
  std::vector<Unit> chosen;
  std::vector<Chooser> choosers;
  for (std::size_t i = 0; i < derived.model.units.size(); ++i) {
    const Unit& unit = derived.model.units[i];
    Chooser of_unit = derived.of_units[i];
    if (!unit.may_be_group || !of_unit.chance("group", unit.path.find('.') == std::string::npos ? 55 : 22)) continue;
    chosen.push_back(unit);
    choosers.push_back(of_unit);
  }
  parallel.root_is_replicated = parallel.names.empty() && !chosen.empty() && parallel.param.empty() &&
                                parallel.reduce.empty() && parallel.offload.empty() &&
                                choose.chance("root replicated", 10);
  for (std::size_t i = chosen.size(); i-- > 0;) {  // a unit comes after those inside it
    Group group{.modules = {chosen[i].path}, .reshard = derive_reshard(choosers[i], shard_ranks)};
    if (chosen[i].columns > 0 && choosers[i].chance("other dim", 12)) group.other_dim = true;
    const bool joins = !parallel.root_is_replicated && !parallel.groups.empty() && choosers[i].chance("together", 15) &&
                       !is_below(parallel.groups.back().modules.back(), chosen[i].path) && !group.other_dim &&
                       !parallel.groups.back().other_dim;
    if (joins)
      parallel.groups.back().modules.push_back(chosen[i].path);
    else
      parallel.groups.push_back(group);
  }
  if (!parallel.root_is_replicated)
    parallel.groups.push_back({.modules = {""}, .reshard = derive_reshard(choose.in("root"), shard_ranks)});
}

void derive_precision(Chooser choose, Parallel& parallel) {
  switch (choose.pick("precision", {88, 4, 4, 4})) {
    case 1:
      parallel.param = "bfloat16";
      break;
    case 2:
      parallel.param = "bfloat16", parallel.reduce = "float32";
      break;
    case 3:
      parallel.reduce = "bfloat16";
      break;
    default:
      break;
  }
}

void derive_prefetches(Chooser choose, Parallel& parallel) {
  std::vector<std::string> single;
  for (const Group& group : parallel.groups)
    if (group.modules.size() == 1 && !group.modules[0].empty()) single.push_back(group.modules[0]);
  if (single.size() < 2 || !choose.chance("prefetch", 25)) return;
  const auto count = static_cast<std::int64_t>(single.size());
  for (Chooser& item : choose.items("prefetches", 1, 2)) {
    const auto from = item.number("from", 0, count - 1);
    auto ahead = item.number("ahead", 0, count - 2);
    if (ahead >= from) ++ahead;
    parallel.prefetches.push_back({.module = single[static_cast<std::size_t>(from)],
                                   .ahead = single[static_cast<std::size_t>(ahead)],
                                   .in_backward = item.chance("in backward", 50)});
  }
}

void derive_fully_shard(Chooser choose, const DerivedModel& derived, Parallel& parallel) {
  const int offload = choose.pick("offload", {80, 10, 10});
  parallel.offload = offload == 1 ? "cpu" : offload == 2 ? "cpu_pinned" : "";
  if (!derived.model.has_buffers) derive_precision(choose, parallel);
  derive_groups(choose, derived, parallel);
  derive_prefetches(choose, parallel);
}

void derive_replicate(Chooser choose, const Model& model, Parallel& parallel) {
  const bool in_parts =
      !model.blocks.empty() && !model.build.starts_with("Transformer") && choose.chance("in parts", 30);
  if (in_parts)
    parallel.replicated = model.blocks;
  else
    parallel.replicated = {""};
  const int cap = choose.pick("bucket cap", {40, 30, 30});
  parallel.bucket_cap = cap == 1 ? "0.0001" : cap == 2 ? "0.0003" : "";
  parallel.bucket_view = choose.chance("bucket view", 35);
  parallel.starts_apart = !in_parts && choose.chance("starts apart", 15);
}

void derive_flat_shard(Chooser choose, const Model& model, Parallel& parallel) {
  const bool is_hybrid = !parallel.names.empty();
  switch (choose.pick("strategy", {40, 30, 30})) {
    case 1:
      parallel.strategy = is_hybrid ? "hybrid_shard_grad_op" : "shard_grad_op";
      break;
    case 2:
      parallel.strategy = is_hybrid ? "hybrid_shard" : "no_shard";
      break;
    default:
      parallel.strategy = is_hybrid ? "hybrid_shard" : "";
      break;
  }
  std::vector<std::string> types;
  for (const Unit& unit : model.units) {
    const bool is_new = std::find(types.begin(), types.end(), unit.type) == types.end();
    if (is_new) types.push_back(unit.type);
  }
  for (const Unit& unit : model.units)
    if (!unit.may_be_group) std::erase(types, unit.type);
  std::erase(types, "Sequential");  // the model itself is one
  Chooser units = choose.in("units");
  for (const std::string& type : types)
    if (units.chance(type, 40)) parallel.unit_types.push_back(type);
  parallel.use_orig_params = !choose.chance("flat parameters", 35);
  const int prefetch = choose.pick("backward prefetch", {60, 20, 20});
  parallel.backward_prefetch = prefetch == 1 ? "after" : prefetch == 2 ? "none" : "";
  parallel.forward_prefetch = choose.chance("forward prefetch", 20);
  if (choose.chance("offload", 12)) parallel.offload = "cpu";
  parallel.starts_apart = choose.chance("starts apart", 15);
}

// On one axis alone, or below data parallelism on the other axis of a 2-d mesh.
void derive_tensor_parallel(Chooser choose, int world_size, const DerivedModel& derived, Parallel& parallel) {
  const bool is_alone = world_size < 4 || world_size % 2 != 0;
  if (is_alone) {
    parallel.shape = str("[", world_size, "]");
    parallel.names = "[tp]";
    parallel.data_ranks = 1;
    parallel.only_tensor_parallel = true;
    return;
  }
  parallel.shape = str("[", world_size / 2, ", 2]");
  parallel.names = "[dp, tp]";
  parallel.data_ranks = world_size / 2;
  if (choose.chance("replicated", 30)) {
    derive_replicate(choose, derived.model, parallel);
    parallel.bucket_view = parallel.starts_apart = false;
  } else {
    derive_groups(choose, derived, parallel);
  }
}

}  // namespace

Parallel derive_parallel(Chooser choose, Api api, int world_size, const DerivedModel& derived) {
  Parallel parallel;
  parallel.api = api;
  if (api == Api::tensor_parallel) {
    derive_tensor_parallel(choose, world_size, derived, parallel);
    return parallel;
  }
  derive_mesh(choose, world_size, parallel);
  if (api == Api::fully_shard) derive_fully_shard(choose, derived, parallel);
  if (api == Api::replicate) derive_replicate(choose, derived.model, parallel);
  if (api == Api::flat_shard) derive_flat_shard(choose, derived.model, parallel);
  return parallel;
}

Move derive_move(Chooser choose, const Program& program, const DerivedModel& derived) {
  DerivedModel again{.model = derived.model, .of_units = {}};
  for (Chooser of_unit : derived.of_units) again.of_units.push_back(of_unit.in("moved"));
  constexpr Api apis[] = {Api::fully_shard, Api::replicate, Api::flat_shard};
  // A unit of flat_shard gives zeros to a parameter without a gradient, and the plain model gives none.
  const int api = choose.pick("api", {60, 20, derived.model.has_unused ? 0 : 20});
  Move move;
  move.parallel = derive_parallel(choose.in("parallel"), apis[api], program.world_size, again);
  move.parallel.param = move.parallel.reduce = "";
  // A checkpoint cannot say in advance which parameters have no state in the optimizer.
  // Nor does it take running statistics that differ between the ranks.
  move.through_disk = !derived.model.has_unused && !derived.model.has_buffers && choose.chance("through disk", 50);
  move.is_deferred = move.parallel.api == Api::fully_shard && !move.parallel.root_is_replicated &&
                     move.parallel.offload.empty() && !derived.model.has_unused && choose.chance("deferred", 40);
  return move;
}

}  // namespace lockstep::fuzz
