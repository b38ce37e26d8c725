#include "harness/run/trace/plan_conditions.hpp"

#include <algorithm>
#include <vector>

#include "engine/core/fnv.hpp"
#include "engine/core/json_text.hpp"
#include "engine/core/text.hpp"

namespace lockstep::run {

namespace {

using Parameters = std::vector<std::pair<std::string, scenario::Literal>>;

const scenario::Literal* find(const Parameters& parameters, std::string_view name) {
  const auto at =
      std::find_if(parameters.begin(), parameters.end(), [name](const auto& entry) { return entry.first == name; });
  return at == parameters.end() ? nullptr : &at->second;
}

// The value as one line. A value of the matrix hides a parameter of the same name.
std::string value_of(const CaseSpec& spec, std::string_view name) {
  if (name == launch_of_case) return std::string(scenario::name_of(spec.test_case->launch));
  if (name == files_of_case) return json_text(spec.case_folder);
  const scenario::Literal* value = find(spec.test_case->params, name);
  if (value == nullptr) value = find(spec.test_case->parameters, name);
  return value == nullptr ? std::string() : value->json();
}

}  // namespace

std::string conditions_of(const CaseSpec& spec, const std::set<std::string, std::less<>>& names) {
  std::string text;
  for (const std::string& name : names) text += str(name, "\t", value_of(spec, name), "\n");
  return text;
}

bool meets(const CaseSpec& spec, std::string_view conditions) {
  while (!conditions.empty()) {
    const std::size_t tab = conditions.find('\t'), end = conditions.find('\n');
    if (tab == std::string_view::npos || end == std::string_view::npos || end < tab) return false;
    if (value_of(spec, conditions.substr(0, tab)) != conditions.substr(tab + 1, end - tab - 1)) return false;
    conditions.remove_prefix(end + 1);
  }
  return true;
}

std::uint64_t digest_of_plan(const CaseSpec& spec, std::uint64_t control_digest, std::size_t stage, int world_size) {
  return fnv1a_append(control_digest, str(stage, " ", world_size, " ", spec.test_case->device));
}

}  // namespace lockstep::run
