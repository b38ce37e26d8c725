// The scenarios that speak of a defect: a search of their texts for its words.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/expand.hpp"

namespace lockstep::cli {

// The words of a text in lower case, as sets of stems: their first five letters, of those that have three or more.
std::set<std::string> stems_of(std::string_view text);

// How much of a query the text of each scenario contains. Rare words count more, and words of the name count twice.
// Scenarios without a readable file count by their names alone.
class CaseRelevance {
 public:
  explicit CaseRelevance(const std::vector<scenario::Case>& cases);
  // By scenario name; scenarios that share no word with the query are not in it.
  std::map<std::string, double> scores(std::string_view query) const;

 private:
  struct Words {
    std::set<std::string> in_name, in_text;
  };
  std::map<std::string, Words> words_;             // by scenario name
  std::map<std::string, int> num_scenarios_with_;  // by stem
};

}  // namespace lockstep::cli
