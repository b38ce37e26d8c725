#include "harness/fuzz/corpus.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace lockstep::fuzz {

namespace {

using Pairs = std::set<std::pair<std::string, std::string>>;

// Sizes of models and seeds of values are no features.
bool is_feature(const std::string& choice) {
  return choice.find("width") == std::string::npos && choice.find("values") == std::string::npos;
}

Pairs pairs_of(const Derivation& tree) {
  std::set<std::string> features;
  for (const std::string& choice : choices_of(tree, true))
    if (is_feature(choice)) features.insert(choice);
  Pairs pairs;
  for (auto first = features.begin(); first != features.end(); ++first)
    for (auto second = std::next(first); second != features.end(); ++second) pairs.emplace(*first, *second);
  return pairs;
}

}  // namespace

std::vector<std::size_t> with_most_pairs(const std::vector<Derivation>& trees, std::size_t count) {
  std::vector<Pairs> left;
  left.reserve(trees.size());
  for (const Derivation& tree : trees) left.push_back(pairs_of(tree));
  std::vector<std::size_t> kept;
  while (kept.size() < count) {
    const auto best =
        std::max_element(left.begin(), left.end(), [](const Pairs& a, const Pairs& b) { return a.size() < b.size(); });
    if (best == left.end() || best->empty()) break;
    kept.push_back(static_cast<std::size_t>(best - left.begin()));
    const Pairs taken = *best;
    for (Pairs& pairs : left)
      for (const auto& pair : taken) pairs.erase(pair);
  }
  return kept;
}

}  // namespace lockstep::fuzz
