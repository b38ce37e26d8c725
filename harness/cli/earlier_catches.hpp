// What caught each seeded defect in an earlier run, from its results file (`lockstep kill-matrix --results`). A case
// that caught a defect before most likely does so again.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace lockstep::cli {

// Scenario and case id, by the name of the defect.
using EarlierCatches = std::map<std::string, std::set<std::pair<std::string, std::string>>, std::less<>>;

// Throws Error when the file cannot be read or is no such file.
EarlierCatches read_earlier_catches(const std::string& path);

}  // namespace lockstep::cli
