#include "harness/cli/case_order.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>

namespace lockstep::cli {

namespace {

using Ranked = std::pair<int, const scenario::Case*>;

std::vector<scenario::Case> copies_of(const std::vector<Ranked>& order) {
  std::vector<scenario::Case> cases;
  cases.reserve(order.size());
  for (const auto& [key, one] : order) cases.push_back(*one);
  return cases;
}

template <class Key, class Value>
double value_or_zero(const std::map<Key, Value>& values, const Key& key) {
  const auto found = values.find(key);
  return found == values.end() ? 0.0 : static_cast<double>(found->second);
}

// The cases with the highest value first; equals keep their order.
template <class Function>
std::vector<const scenario::Case*> ranked(const std::vector<scenario::Case>& cases, const Function& value_of) {
  std::vector<std::pair<double, const scenario::Case*>> order;
  order.reserve(cases.size());
  for (const scenario::Case& one : cases) order.emplace_back(-value_of(one), &one);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const scenario::Case*> addresses;
  addresses.reserve(order.size());
  for (const auto& [key, one] : order) addresses.push_back(one);
  return addresses;
}

}  // namespace

std::vector<int> spread_order(int num) {
  std::vector<int> order;
  if (num > 0) order.push_back(0);
  if (num > 1) order.push_back(num - 1);
  std::deque<std::pair<int, int>> gaps = {{0, num - 1}};
  for (; !gaps.empty(); gaps.pop_front()) {
    const auto [low, high] = gaps.front();
    const int middle = (low + high) / 2;
    if (middle == low || middle == high) continue;
    order.push_back(middle);
    gaps.emplace_back(low, middle);
    gaps.emplace_back(middle, high);
  }
  return order;
}

std::vector<scenario::Case> one_per_scenario_in_turn(const std::vector<scenario::Case>& cases) {
  std::map<std::string, std::vector<const scenario::Case*>> of_scenario;
  for (const scenario::Case& one : cases)
    if (!one.skip && !one.unsupported) of_scenario[one.scenario->name].push_back(&one);
  std::vector<Ranked> order;
  for (const auto& [name, members] : of_scenario) {
    int turn = 0;
    for (int i : spread_order(static_cast<int>(members.size()))) order.emplace_back(turn++, members[i]);
  }
  std::stable_sort(order.begin(), order.end(), [](const Ranked& a, const Ranked& b) { return a.first < b.first; });
  return copies_of(order);
}

std::vector<scenario::Case> likely_catchers_first(const std::vector<scenario::Case>& cases,
                                                  const std::map<const scenario::Case*, int>& num_catches,
                                                  const std::map<std::string, double>& scores) {
  const auto by_catches = ranked(cases, [&](const scenario::Case& one) { return value_or_zero(num_catches, &one); });
  const auto by_score = ranked(cases, [&](const scenario::Case& one) {  //
    return value_or_zero(scores, one.scenario->name);
  });
  std::vector<scenario::Case> order;
  std::set<const scenario::Case*> taken;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const scenario::Case* one : {by_catches[i], by_score[i]})
      if (taken.insert(one).second) order.push_back(*one);
  return order;
}

}  // namespace lockstep::cli
