#include "engine/state/tree.hpp"

#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/flat_parameter.hpp"
#include "engine/layout/placement.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/optimizer_values.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

void add(Tree& tree, const std::string& name, const nn::ModulePtr& module) {
  for (parallel::HeldValue& value : parallel::held_state(module)) {
    if (value.buffer.defined()) tree.copies.emplace_back(value.buffer, value.tensor);
    tree.tensors.push_back({str(name, ".", value.path), value.tensor, std::move(value.stretch)});
  }
}

void add(Tree& tree, const std::string& name, optim::Optimizer* optimizer) {
  parallel::HeldOptimizerState held = parallel::held_optimizer_state(*optimizer);
  for (parallel::HeldParameterState& of : held.state) {
    for (parallel::HeldValue& value : of.tensors)
      tree.tensors.push_back({optimizer_key(name, of.name, value.path), value.tensor, std::move(value.stretch)});
    if (of.step) tree.values.push_back({optimizer_key(name, of.name, "step"), str(*of.step)});
  }
  tree.values.push_back({name + ".type", Json(std::string(optimizer->type())).dump()});
  for (std::size_t i = 0; i < held.groups.size(); ++i)
    tree.values.push_back({str(name, ".groups.", i), text_of_group(held.groups[i].first, held.groups[i].second)});
}

void add(Tree& tree, const std::string& name, const optim::GradScaler* scaler) {
  tree.values.push_back({name + ".scaler", text_of_scaler(scaler->state_dict())});
}

void add(Tree& tree, const std::string& name, const Tensor& tensor) { tree.tensors.push_back({name, tensor}); }

void add(Tree& tree, const std::string& name, const PlainValue& value) { tree.values.push_back({name, value.json}); }

void add(Tree& tree, const std::string& name, const RandomState&) {
  RankContext& context = RankContext::current();
  tree.values.push_back({str(name, ".rank-", context.rank()), random_state_text(context.generator().state())});
}

}  // namespace

std::string optimizer_key(const std::string& prefix, const std::string& parameter, const std::string& key) {
  return str(prefix, ".state.", parameter, ".", key);
}

Tree tree_of(const State& state) {
  Tree tree;
  for (const Part& part : state) std::visit([&](const auto& object) { add(tree, part.name, object); }, part.object);
  std::set<std::string> keys;
  const auto check = [&keys](const std::string& key) {
    if (!keys.insert(key).second)
      throw Error(str("the state has `", key, "` twice"), "give each object a name of its own");
  };
  for (const TreeTensor& entry : tree.tensors) check(entry.key);
  for (const TreeValue& entry : tree.values) check(entry.key);
  return tree;
}

const Dims& full_sizes(const TreeTensor& entry) {
  return entry.stretch ? entry.stretch->sizes : global_sizes(entry.tensor);
}

namespace {

// The boxes of a stretch in the full parameter: those of the part, moved to where the part lies. An empty stretch is a
// part without boxes.
std::vector<HeldPart> parts_of_stretch(const Tensor& tensor, const parallel::FlatStretch& stretch, int rank) {
  const std::vector<HeldBox> places = held_boxes(stretch.sizes, stretch.inner, rank);
  std::vector<HeldPart> parts;
  for (const layout::StretchBox& one : layout::boxes_of_stretch(stretch.part, stretch.begin, tensor.num_elements())) {
    HeldPart part{as_strided(tensor, one.sizes, contiguous_strides(one.sizes), tensor.offset() + one.at), {}};
    for (const HeldBox& place : places) {
      const std::optional<Box> common = overlap({one.offsets, one.sizes}, {place.at, place.box.sizes});
      if (!common) continue;
      HeldBox held{*common, common->offsets};
      for (int dim = 0; dim < held.at.size(); ++dim) {
        held.at[dim] -= one.offsets[dim];
        held.box.offsets[dim] += place.box.offsets[dim] - place.at[dim];
      }
      part.boxes.push_back(held);
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) parts.push_back({tensor, {}});
  return parts;
}

}  // namespace

std::vector<HeldPart> held_parts(const TreeTensor& entry) {
  const int rank = RankContext::current().rank();
  if (entry.stretch) return parts_of_stretch(entry.tensor, *entry.stretch, rank);
  return {{local_tensor(entry.tensor), held_boxes(global_sizes(entry.tensor), entry.tensor.layout(), rank)}};
}

void check_not_partial(const TreeTensor& entry) {
  const LayoutPtr layout = entry.tensor.layout();
  if (!layout || !layout::has_partial(*layout)) return;
  throw Error(str("`", entry.key, "` is ", layout->text(), ": each rank holds a summand of its values"),
              "redistribute it to a replicated or sharded placement first");
}

std::string random_state_text(const Generator::State& state) {
  std::ostringstream engine;
  engine << state.engine;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &state.cached, sizeof bits);
  return Json{{"engine", engine.str()}, {"has_cached", state.has_cached}, {"cached_bits", bits}}.dump();
}

Generator::State random_state_from_text(const std::string& json) {
  try {
    const Json read = Json::parse(json);
    Generator::State state;
    const auto text = read.at("engine").get<std::string>();
    std::istringstream engine(text), words(text);
    engine >> state.engine;
    if (engine.fail()) throw Error("the state of the engine is incomplete");
    for (std::uint64_t word = 0; words >> word;)
      if (word > std::mt19937::max()) throw Error("the state of the engine has a word of more than 32 bits");
    state.has_cached = read.at("has_cached").get<bool>();
    if (!read.at("cached_bits").is_number_unsigned()) throw Error("`cached_bits` is no integer from 0");
    const auto bits = read.at("cached_bits").get<std::uint64_t>();
    std::memcpy(&state.cached, &bits, sizeof bits);
    return state;
  } catch (const std::exception& error) {
    throw Error(str("no state of a random generator: ", error.what()), "restore the checkpoint from a copy");
  }
}

}  // namespace lockstep::state
