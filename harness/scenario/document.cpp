#include "harness/scenario/document.hpp"

#include "engine/core/error.hpp"

namespace lockstep::scenario {

const Expr* Step::argument(std::string_view name) const {
  const std::optional<std::size_t> index = spec_of(verb).index_of(name);
  LOCKSTEP_CHECK(index.has_value(), "the verb ", name_of(verb), " has no argument ", name);
  return arguments[*index].get();
}

const MethodDefinition* ModelDefinition::method(std::string_view wanted) const {
  for (const MethodDefinition& candidate : methods) {
    if (candidate.name == wanted) return &candidate;
  }
  return nullptr;
}

const RoutineParameter* Routine::parameter(std::string_view wanted) const {
  for (const RoutineParameter& candidate : parameters) {
    if (candidate.name == wanted) return &candidate;
  }
  return nullptr;
}

const ModelDefinition* Scenario::model(std::string_view wanted) const {
  for (const ModelDefinition& candidate : models) {
    if (candidate.name == wanted) return &candidate;
  }
  return nullptr;
}

std::string_view name_of(SumOrder order) { return order == SumOrder::fixed ? "fixed" : "library"; }
std::optional<SumOrder> sum_order_from_name(std::string_view name) {
  for (const SumOrder order : {SumOrder::fixed, SumOrder::library})
    if (name == name_of(order)) return order;
  return std::nullopt;
}
std::string_view name_of(Launch launch) { return launch == Launch::process ? "process" : "thread"; }

}  // namespace lockstep::scenario
