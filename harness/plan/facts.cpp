#include "harness/plan/facts.hpp"

#include "engine/core/error.hpp"

namespace lockstep::plan {

namespace {

void walk(const Facts& facts, ModuleId id, bool parents_first, std::set<ModuleId>& seen, std::vector<ModuleId>& order) {
  if (!seen.insert(id).second) return;
  if (parents_first) order.push_back(id);
  for (const ModuleId child : facts.module(id).children) walk(facts, child, parents_first, seen, order);
  if (!parents_first) order.push_back(id);
}

std::vector<ModuleId> walked(const Facts& facts, ModuleId root, bool parents_first, std::set<ModuleId> seen = {}) {
  std::vector<ModuleId> order;
  walk(facts, root, parents_first, seen, order);
  return order;
}

}  // namespace

const ModuleFacts& Facts::module(ModuleId id) const {
  const auto at = modules.find(id);
  LOCKSTEP_CHECK(at != modules.end(), "the plan knows no module ", id);
  return at->second;
}

const TensorFacts& Facts::tensor(TensorId id) const {
  const auto at = tensors.find(id);
  LOCKSTEP_CHECK(at != tensors.end(), "the plan knows no tensor ", id);
  return at->second;
}

void Facts::update(const Facts& newer) {
  for (const auto& [id, module] : newer.modules) modules[id] = module;
  for (const auto& [id, tensor] : newer.tensors) tensors[id] = tensor;
}

std::vector<ModuleId> Facts::pre_order(ModuleId root, const std::set<ModuleId>& without) const {
  return walked(*this, root, true, without);
}
std::vector<ModuleId> Facts::post_order(ModuleId root) const { return walked(*this, root, false); }

std::int64_t bytes_of(const Dims& sizes, DType dtype) {
  return static_cast<std::int64_t>(checked_bytes(sizes, size_of(dtype), "plan"));
}

}  // namespace lockstep::plan
