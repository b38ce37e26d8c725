// The conditions under which a plan is that of another case of its scenario: the values that its dry run read. A dry
// run depends on nothing else that differs among cases with the same ranks and device. So a case with the same values
// has the same plan.
//
//   const std::string conditions = conditions_of(spec, {"num_layers", "$launch"});   // of the case that was planned
//   if (meets(other_spec, conditions)) its dry run on the same rank gives the same plan
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "harness/run/case_runner.hpp"

namespace lockstep::run {

// Besides the names of parameters: the launch of the case, and its folder, whose files no other case has.
inline constexpr std::string_view launch_of_case = "$launch";
inline constexpr std::string_view files_of_case = "$files";

// One line per name: the name, a tab, and its value in this case.
std::string conditions_of(const CaseSpec& spec, const std::set<std::string, std::less<>>& names);
// Whether the names of a text of conditions_of() have the same values in this case.
bool meets(const CaseSpec& spec, std::string_view conditions);

// The digest of the steps of a rank, with the stage, the number of ranks and the device.
std::uint64_t digest_of_plan(const CaseSpec& spec, std::uint64_t control_digest, std::size_t stage, int world_size);

}  // namespace lockstep::run
