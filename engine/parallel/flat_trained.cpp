#include "engine/parallel/flat_trained.hpp"

#include <map>

#include "engine/parallel/flat_units.hpp"

namespace lockstep::parallel {

std::vector<std::vector<Trained>> trained_by(optim::Optimizer& optimizer) {
  const std::map<const TensorImpl*, FlatMember> members = flat_members();
  std::vector<std::vector<Trained>> groups;
  for (const optim::Group& group : optimizer.groups()) {
    auto& trained = groups.emplace_back();
    for (const optim::ParameterRef& parameter : group.parameters) {
      const auto at = members.find(&parameter.get().impl());
      const FlatMember member = at == members.end() ? FlatMember() : at->second;
      trained.push_back(
          {parameter.name, member.unit, member.index, member.unit && !member.unit->has_original_parameters()});
    }
  }
  return groups;
}

std::vector<Original> originals_of(const Trained& trained) {
  if (!trained.is_chunk) return {{trained.name, trained.index}};
  const std::size_t dot = trained.name.rfind('.');
  const std::string prefix = dot == std::string::npos ? "" : trained.name.substr(0, dot + 1);
  std::vector<Original> originals;
  for (std::size_t i = 0; i < trained.unit->num_parameters(); ++i)
    originals.push_back({prefix + trained.unit->parameter_name(i), i});
  return originals;
}

}  // namespace lockstep::parallel
