#include "engine/parallel/flat_optimizer_state.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_pieces.hpp"
#include "engine/parallel/flat_state_entries.hpp"
#include "engine/parallel/flat_trained.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

using Json = nlohmann::json;
using StateTensors = std::map<std::string, Tensor>;

StateDictSettings settings_of(const std::vector<std::vector<Trained>>& groups) {
  const FlatParameterShards* first = nullptr;
  for (const auto& group : groups)
    for (const Trained& one : group) {
      if (!one.unit) continue;
      if (!first) first = one.unit.get();
      if (!(one.unit->state_dict == first->state_dict))
        throw Error(str("All FSDP modules must have the same state dict settings: ", first->settings().owner, " has ",
                        name_of(first->state_dict.type), ", ", one.unit->settings().owner, " has ",
                        name_of(one.unit->state_dict.type)),
                    "set the type of the outermost module");
    }
  return first ? first->state_dict : StateDictSettings{StateDictType::local};
}

bool stays(const Trained& trained, const StateDictSettings& settings) {
  return !trained.unit || settings.type == StateDictType::local;
}

// Whether this rank has no element of a parameter that is divided among ranks. Then the optimizer never steps it here.
bool is_elsewhere(const FlatParameterShards& unit, const Trained& trained) {
  const bool is_divided = unit.settings().mesh.is_sharded() || unit.parameter(trained.index).inner_layout != nullptr;
  return !trained.is_chunk && is_divided && unit.stretch(trained.index).length == 0;
}

// The meshes of tensor parallelism below the unit, each once, in order of the parameters.
std::vector<layout::MeshShape> inner_meshes(const FlatParameterShards& unit) {
  std::vector<layout::MeshShape> meshes;
  for (std::size_t i = 0; i < unit.num_parameters(); ++i) {
    const LayoutPtr& inner = unit.parameter(i).inner_layout;
    if (inner && std::find(meshes.begin(), meshes.end(), inner->mesh) == meshes.end()) meshes.push_back(inner->mesh);
  }
  return meshes;
}

// ---- saving ----
// The state that any rank has of the parameters of a unit: types of the tensors by key, and the step count.
struct Known {
  std::map<std::string, DType> keys;
  std::int64_t step = 0;
  bool has_step = false;
};

Json described(const StateTensors& tensors) {
  Json keys = Json::object();
  for (const auto& [key, tensor] : tensors)
    if (key != "step") keys[key] = std::string(name_of(tensor.dtype()));
  return {{"keys", std::move(keys)}, {"step", static_cast<std::int64_t>(item(tensors.at("step")))}};
}

// Collective over the shard axis and the meshes of tensor parallelism: ranks without an element of a parameter have no
// state of it.
std::map<std::string, Known> known_to_all(const FlatParameterShards& unit, const std::vector<Trained>& members,
                                          const std::map<std::string, const StateTensors*>& held) {
  Json mine = Json::object();
  for (const Trained& one : members)
    if (const auto at = held.find(one.name); at != held.end() && !is_elsewhere(unit, one))
      mine[one.name] = described(*at->second);
  Json of_ranks = Json::array();
  of_ranks.push_back(std::move(mine));
  const auto exchange_in = [&of_ranks](comm::ProcessGroup& group) {
    const std::string sent = of_ranks.dump();
    of_ranks.clear();
    for (const std::string& text : comm::exchange(group, sent, "state of an optimizer")) {
      const Json given = Json::parse(text);
      for (const Json& of_rank : given) of_ranks.push_back(of_rank);
    }
  };
  if (unit.settings().mesh.is_sharded()) exchange_in(unit.settings().mesh.shard_group());
  for (const layout::MeshShape& mesh : inner_meshes(unit)) exchange_in(DeviceMesh(mesh).mesh_group());
  std::map<std::string, Known> known;
  for (const Json& of_rank : of_ranks) {
    for (const auto& [name, state] : of_rank.items()) {
      Known& one = known[name];
      for (const auto& [key, type] : state.at("keys").items()) one.keys[key] = dtype_from_name(type.get<std::string>());
      const auto step = state.at("step").get<std::int64_t>();
      if (one.has_step && one.step != step)
        throw Error(str("state_dict: ranks have taken ", one.step, " and ", step, " steps of `", name, "` of ",
                        unit.settings().owner),
                    "step the optimizer on all ranks");
      one.step = step;
      one.has_step = true;
    }
  }
  return known;
}

// One state tensor of all parameters of the unit, as a chunk.
Tensor chunk_of_state(const FlatParameterShards& unit, const std::string& key, DType dtype,
                      const std::vector<Trained>& members, const std::map<std::string, const StateTensors*>& held) {
  const device::PurposeScope purpose(device::Purpose::optimizer);
  const Tensor chunk = zeros({unit.flat().per_rank}, dtype, unit.shard().device());
  for (const Trained& one : members) {
    const auto at = held.find(one.name);
    if (at == held.end()) continue;
    const auto found = at->second->find(key);
    if (found == at->second->end()) continue;
    if (one.is_chunk) return found->second;
    const layout::Stretch to = unit.stretch(one.index);
    if (defect_armed(Defect::flat_optimizer_state_straddling_lost) && to.begin > 0) [[unlikely]]
      continue;
    raw::copy_(slice(chunk, 0, to.offset, to.offset + to.length),
               view(raw::contiguous(local_tensor(found->second)), {-1}));
  }
  return chunk;
}

// The state of the parameters of a unit by original name.
std::map<std::string, StateTensors> state_of_unit(const FlatParameterShards& unit, const std::vector<Trained>& members,
                                                  const std::map<std::string, const StateTensors*>& held,
                                                  const StateDictSettings& settings) {
  const std::map<std::string, Known> known = known_to_all(unit, members, held);
  const bool shards = unit.settings().mesh.is_sharded();
  const bool keeps = keeps_entries(unit, settings);
  std::map<std::string, DType> keys;
  for (const auto& [name, one] : known) keys.insert(one.keys.begin(), one.keys.end());
  std::map<std::string, StateTensors> state;
  for (const Trained& one : members) {
    const auto at = known.find(one.name);
    if (at == known.end() || !keeps) continue;
    for (const Original& original : originals_of(one))
      state[original.name]["step"] = full({}, static_cast<double>(at->second.step), DType::float32, device::Device{});
  }
  for (const auto& [key, dtype] : keys) {
    const Tensor flat = unit.gather_flat(chunk_of_state(unit, key, dtype, members, held));
    for (const Trained& one : members) {
      const auto at = known.find(one.name);
      if (at == known.end() || !at->second.keys.contains(key)) continue;
      for (const Original& original : originals_of(one)) {
        const Tensor part = unit.part_of(flat, original.index);
        const Tensor made =
            shards && settings.type == StateDictType::sharded ? piece_of(unit, original.index, part) : full_of(part);
        if (keeps) state[original.name][key] = settings.cpu ? on_host(made) : made;
      }
    }
  }
  return state;
}

}  // namespace

OptimizerState optimizer_state_dict(optim::Optimizer& optimizer, const std::optional<StateDictSettings>& given) {
  const NoGrad no_grad;
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  const StateDictSettings settings = given ? *given : settings_of(groups);
  OptimizerState as_held = optimizer.state_dict();
  if (settings.type == StateDictType::local) return as_held;
  std::map<std::string, const StateTensors*> held;
  for (const auto& [name, tensors] : as_held.state) held[name] = &tensors;

  std::vector<FlatParameterShards*> units;  // in order of their first parameter
  std::map<const FlatParameterShards*, std::vector<Trained>> members;
  for (const auto& group : groups)
    for (const Trained& one : group) {
      if (!one.unit) continue;
      if (!members.contains(one.unit.get())) units.push_back(one.unit.get());
      members[one.unit.get()].push_back(one);
    }
  std::map<std::string, StateTensors> made;
  for (const FlatParameterShards* unit : units) made.merge(state_of_unit(*unit, members.at(unit), held, settings));

  OptimizerState state;
  const auto originals = originals_in_order(optimizer, groups);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& [names, options] = state.groups.emplace_back();
    options = as_held.groups[i].second;
    for (const auto& [trained, original] : originals[i]) {
      names.push_back(original.name);
      if (!trained->unit) {
        if (const auto at = held.find(original.name); at != held.end())
          state.state.emplace_back(original.name, *at->second);
      } else if (const auto at = made.find(original.name); at != made.end()) {
        state.state.emplace_back(*at);
      }
    }
  }
  return state;
}

// ---- loading ----
namespace {

LayoutPtr expected_layout(const FlatParameterShards& unit, std::size_t index, const StateDictSettings& settings) {
  const bool sharded = settings.type == StateDictType::sharded && unit.settings().mesh.is_sharded();
  return sharded ? piece_layout(unit, index) : nullptr;
}

bool is_scalar_of_host(const std::string& key) { return key == "step"; }

void check_form(const std::string& name, const Tensor& given, const Dims& sizes, const LayoutPtr& layout) {
  const auto text = [](const Dims& of, const LayoutPtr& as) { return as ? as->text() : str("plain ", to_text(of)); };
  const bool same_layout = given.layout() && layout ? *given.layout() == *layout : given.layout() == layout;
  if (same_layout && global_sizes(given) == sizes) return;
  throw Error(str("load_state_dict: `", name, "` is ", text(global_sizes(given), given.layout()), ", its place in the ",
                  "state is ", text(sizes, layout)),
              "load the state of the same model, of the type that set_state_dict_type names");
}

// A rank that has no element of the parameter refuses it, too.
void check_has_values(const FlatParameterShards& unit, const std::string& name, const Tensor& given) {
  if (given.is_meta() && !unit.shard().is_meta())
    throw Error(str("load_state_dict: `", name, "` is ", describe_sharded(given), ": it has no values"),
                "give tensors on a device that has memory");
}

using GivenState = std::map<std::string, const StateTensors*>;

// The state of an optimizer in the form that it holds.
class HeldState {
 public:
  HeldState(const GivenState& given, const StateDictSettings& settings) : given_(given), settings_(settings) {}

  // On all ranks alike, also on those that have no element of the parameter.
  void check(const optim::Optimizer& optimizer, const Trained& trained, const optim::Options& options) const {
    const FlatParameterShards& unit = *trained.unit;
    const Original* first = nullptr;
    const std::vector<Original> originals = originals_of(trained);
    for (const Original& original : originals) {
      const StateTensors* tensors = find(original.name);
      if (tensors) optimizer.check_state(original.name, *tensors, options);
      if (!first) first = &original;
      check_alike(unit, *first, original);
      if (!tensors) continue;
      for (const auto& [key, tensor] : *tensors)
        if (!is_scalar_of_host(key)) {
          check_form(str(original.name, "/", key), tensor, full_sizes(unit, original.index),
                     expected_layout(unit, original.index, settings_));
          check_has_values(unit, str(original.name, "/", key), tensor);
        }
    }
  }

  // Collective under `sharded`. Nullopt when the parameter has no state on this rank.
  std::optional<StateTensors> of(const Trained& trained) const {
    const FlatParameterShards& unit = *trained.unit;
    StateTensors held;
    for (const Original& original : originals_of(trained)) {
      const StateTensors* tensors = find(original.name);
      if (!tensors) return std::nullopt;
      for (const auto& [key, tensor] : *tensors) {
        if (is_scalar_of_host(key)) {
          held[key] = defect_armed(Defect::flat_optimizer_step_forgotten) ? zeros_like(tensor) : tensor;
          continue;
        }
        const Tensor local = local_part(unit, original.index, tensor);
        if (trained.is_chunk) {
          Tensor& chunk = held[key];
          if (!chunk.defined()) chunk = zeros({unit.flat().per_rank}, tensor.dtype(), unit.shard().device());
          write_stretch(unit, original.index, chunk, local);
        } else {
          held[key] = stretch_like(unit, original.index, local);
        }
      }
    }
    if (is_elsewhere(unit, trained)) return std::nullopt;
    return held;
  }

 private:
  const StateTensors* find(const std::string& name) const {
    const auto at = given_.find(name);
    return at == given_.end() ? nullptr : at->second;
  }
  // The parameters of one flat parameter have the same keys and the same step count.
  void check_alike(const FlatParameterShards& unit, const Original& a, const Original& b) const {
    const StateTensors *left = find(a.name), *right = find(b.name);
    const auto text = [](const StateTensors* tensors) {
      std::string keys;
      if (tensors)
        for (const auto& [key, tensor] : *tensors)
          keys += str(keys.empty() ? "" : ", ", key, key == "step" ? str(" ", item(tensor)) : "");
      return keys.empty() ? "no state" : keys;
    };
    if (text(left) == text(right)) return;
    throw Error(str("load_state_dict: `", a.name, "` has ", text(left), " and `", b.name, "` has ", text(right),
                    ", but the ", "flat parameter of ", unit.settings().owner, " has one state"),
                "use the original parameters, or load state of all parameters of the unit");
  }
  Tensor local_part(const FlatParameterShards& unit, std::size_t index, const Tensor& tensor) const {
    return tensor.is_sharded() ? full_of_piece(unit, index, tensor) : local_of_full(unit, index, tensor);
  }
  static Tensor stretch_like(const FlatParameterShards& unit, std::size_t index, const Tensor& local) {
    const Tensor& trained = unit.trained(index);
    Tensor mine = unit.stretch_of_full(local, index);
    if (defect_armed(Defect::flat_optimizer_state_of_first_part)) [[unlikely]]
      mine = slice(view(raw::contiguous(local), {-1}), 0, 0, mine.size(0));
    return sharded_like(view(raw::clone(mine), local_tensor(trained).sizes()), trained);
  }

  const GivenState& given_;
  const StateDictSettings settings_;
};

// The groups of the state with the names of the optimizer's parameters in the place of the original ones.
void rename_groups(OptimizerState& state, const std::vector<std::vector<Trained>>& groups) {
  for (std::size_t i = 0; i < groups.size() && i < state.groups.size(); ++i) {
    std::vector<std::string>& names = state.groups[i].first;
    for (const Trained& one : groups[i]) {
      if (!one.is_chunk) continue;
      const std::set<std::string> known(names.begin(), names.end());
      const std::vector<Original> originals = originals_of(one);
      const auto is_known = [&known](const Original& original) { return known.contains(original.name); };
      if (!std::all_of(originals.begin(), originals.end(), is_known)) continue;
      for (const Original& original : originals) std::erase(names, original.name);
      names.push_back(one.name);
    }
  }
}

}  // namespace

void load_optimizer_state_dict(optim::Optimizer& optimizer, const OptimizerState& state,
                               const std::optional<StateDictSettings>& given_settings) {
  const NoGrad no_grad;
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  const StateDictSettings settings = given_settings ? *given_settings : settings_of(groups);
  if (settings.type == StateDictType::local) return optimizer.load_state_dict(state);
  GivenState given;
  for (const auto& [name, tensors] : state.state) given[name] = &tensors;
  const HeldState held(given, settings);
  OptimizerState made;
  made.groups = state.groups;
  rename_groups(made, groups);
  optimizer.check_groups(made);
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const Trained& one : groups[i])
      if (!stays(one, settings)) held.check(optimizer, one, made.groups[i].second);
  for (const auto& group : groups)
    for (const Trained& one : group) {
      if (stays(one, settings)) {
        if (const auto at = given.find(one.name); at != given.end()) made.state.emplace_back(one.name, *at->second);
      } else if (std::optional<StateTensors> tensors = held.of(one)) {
        made.state.emplace_back(one.name, std::move(*tensors));
      }
    }
  optimizer.load_state_dict(made);
}

std::vector<std::pair<std::string, StateDictTarget>> optimizer_state_targets(optim::Optimizer& optimizer) {
  const std::vector<std::vector<Trained>> groups = trained_by(optimizer);
  const StateDictSettings settings = settings_of(groups);
  std::vector<std::pair<std::string, StateDictTarget>> targets;
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (std::size_t k = 0; k < groups[i].size(); ++k) {
      const Trained& one = groups[i][k];
      if (stays(one, settings)) {
        const Tensor tensor = optimizer.groups()[i].parameters[k].get();
        targets.push_back(
            {one.name, {{one.name, global_sizes(tensor), tensor.layout()}, tensor.dtype(), tensor.device()}});
        continue;
      }
      for (const Original& original : originals_of(one))
        targets.push_back({original.name,
                           {{original.name, full_sizes(*one.unit, original.index),
                             expected_layout(*one.unit, original.index, settings)},
                            one.unit->shard().dtype(),
                            one.unit->shard().device()}});
    }
  return targets;
}

std::vector<std::string> original_names(optim::Optimizer& optimizer) {
  std::vector<std::string> names;
  const auto groups = trained_by(optimizer);
  if (settings_of(groups).type == StateDictType::local) {
    for (const auto& group : groups)
      for (const Trained& one : group) names.push_back(one.name);
    return names;
  }
  for (const auto& group : originals_in_order(optimizer, groups))
    for (const TrainedOriginal& one : group) names.push_back(one.original.name);
  return names;
}

std::set<std::string> names_elsewhere(optim::Optimizer& optimizer) {
  std::set<std::string> names;
  for (const auto& group : trained_by(optimizer))
    for (const Trained& one : group)
      if (one.unit && is_elsewhere(*one.unit, one)) names.insert(one.name);
  return names;
}

}  // namespace lockstep::parallel
