#include "engine/state/tree.hpp"

#include <cstring>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/layout/placement.hpp"
#include "engine/state/optimizer_values.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

void add(Tree& tree, const std::string& name, const nn::ModulePtr& module) {
  for (auto& [path, tensor] : nn::state_dict(module)) tree.tensors.push_back({str(name, ".", path), tensor});
}

void add(Tree& tree, const std::string& name, const optim::Optimizer* optimizer) {
  const optim::Optimizer::StateDict dict = optimizer->state_dict();
  for (const auto& [parameter, tensors] : dict.state)
    for (const auto& [key, tensor] : tensors) {
      const std::string full_key = optimizer_key(name, parameter, key);
      if (key == "step")
        tree.values.push_back({full_key, str(static_cast<std::int64_t>(item(tensor)))});
      else
        tree.tensors.push_back({full_key, tensor});
    }
  tree.values.push_back({name + ".type", Json(std::string(optimizer->type())).dump()});
  for (std::size_t i = 0; i < dict.groups.size(); ++i)
    tree.values.push_back({str(name, ".groups.", i), text_of_group(dict.groups[i].first, dict.groups[i].second)});
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
    std::istringstream engine(read.at("engine").get<std::string>());
    engine >> state.engine;
    if (engine.fail()) throw Error("the state of the engine is incomplete");
    state.has_cached = read.at("has_cached").get<bool>();
    const auto bits = read.at("cached_bits").get<std::uint64_t>();
    std::memcpy(&state.cached, &bits, sizeof bits);
    return state;
  } catch (const std::exception& error) {
    throw Error(str("no state of a random generator: ", error.what()), "restore the checkpoint from a copy");
  }
}

}  // namespace lockstep::state
