#include "harness/cli/case_relevance.hpp"

#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>

namespace lockstep::cli {

std::set<std::string> stems_of(std::string_view text) {
  constexpr std::size_t shortest = 3, kept = 5;
  std::set<std::string> stems;
  std::string word;
  const auto end_word = [&] {
    if (word.size() >= shortest) stems.insert(word.substr(0, kept));
    word.clear();
  };
  for (const char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) == 0)
      end_word();
    else
      word += static_cast<char>(std::tolower(letter));
  }
  end_word();
  return stems;
}

CaseRelevance::CaseRelevance(const std::vector<scenario::Case>& cases) {
  for (const scenario::Case& one : cases) {
    const auto [at, is_new] = words_.try_emplace(one.scenario->name);
    if (!is_new) continue;
    std::ifstream file(one.scenario->path);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    at->second = {stems_of(one.scenario->name), stems_of(one.scenario->name + " " + text)};
    for (const std::string& stem : at->second.in_text) ++num_scenarios_with_[stem];
  }
}

std::map<std::string, double> CaseRelevance::scores(std::string_view query) const {
  std::map<std::string, double> scores;
  const double num_scenarios = static_cast<double>(words_.size());
  for (const std::string& stem : stems_of(query)) {
    const auto known = num_scenarios_with_.find(stem);
    if (known == num_scenarios_with_.end()) continue;
    const double weight = std::log(num_scenarios / known->second);
    for (const auto& [name, words] : words_)
      if (words.in_text.contains(stem))
        scores[name] +=
            weight * (words.in_name.contains(stem) ? 2 : 1) / std::sqrt(static_cast<double>(words.in_text.size()));
  }
  return scores;
}

}  // namespace lockstep::cli
