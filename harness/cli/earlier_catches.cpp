#include "harness/cli/earlier_catches.hpp"

#include <fstream>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"

namespace lockstep::cli {

EarlierCatches read_earlier_catches(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(str("cannot read ", path), "give the results file of an earlier kill-matrix, or leave it out");
  EarlierCatches found;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    try {
      const auto row = nlohmann::json::parse(line);
      auto& cases = found[row.at("name").get<std::string>()];
      for (const auto& one : row.at("caught_by"))
        cases.emplace(one.at("scenario").get<std::string>(), one.at("case").get<std::string>());
    } catch (const nlohmann::json::exception&) {
      throw Error(str(path, ":", number, " is no line of a results file of kill-matrix"),
                  "give the file that `lockstep kill-matrix --results FILE` has written");
    }
  }
  return found;
}

}  // namespace lockstep::cli
