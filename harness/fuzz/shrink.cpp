#include "harness/fuzz/shrink.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::fuzz {

namespace {

// A node by the fields and items that lead to it.
struct Way {
  struct Turn {
    std::string field;  // empty: an item
    std::size_t item = 0;
  };
  std::vector<Turn> turns;
};

void collect_ways(const Derivation& node, Way& here, std::vector<Way>& found) {
  found.push_back(here);
  for (const auto& [name, field] : node.fields) {
    here.turns.push_back({name, 0});
    collect_ways(field, here, found);
    here.turns.pop_back();
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    here.turns.push_back({"", i});
    collect_ways(node.items[i], here, found);
    here.turns.pop_back();
  }
}

// Null when the tree has changed so that the way leads nowhere.
Derivation* follow(Derivation& tree, const Way& way) {
  Derivation* node = &tree;
  for (const Way::Turn& turn : way.turns) {
    if (turn.field.empty()) {
      if (turn.item >= node->items.size()) return nullptr;
      node = &node->items[turn.item];
    } else {
      const auto found = node->fields.find(turn.field);
      if (found == node->fields.end()) return nullptr;
      node = &found->second;
    }
  }
  return node;
}

std::int64_t weight_of(const Derivation& node) {
  std::int64_t weight = 1000 * node.size() + node.value;
  for (const auto& [name, field] : node.fields) weight += weight_of(field) - 1000 * field.size();
  for (const Derivation& item : node.items) weight += weight_of(item) - 1000 * item.size();
  return weight;
}

class Shrinker {
 public:
  Shrinker(Derivation tree, int most_runs, const std::function<bool(Derivation&)>& still_fails)
      : best_(std::move(tree)), runs_left_(most_runs), still_fails_(still_fails) {}

  Derivation run() {
    for (bool is_smaller = true; is_smaller && runs_left_ > 0;) is_smaller = pass();
    return best_;
  }

 private:
  // Tries every simplification once; those near the root come first, because they remove most.
  bool pass() {
    const std::int64_t before = weight_of(best_);
    std::vector<Way> ways;
    Way root;
    collect_ways(best_, root, ways);
    for (const Way& way : ways) {
      shorten_list(way);
      simplify(way);
      lower(way);
    }
    return weight_of(best_) < before;
  }

  void shorten_list(const Way& way) {
    const Derivation* node = follow(best_, way);
    if (node == nullptr || node->items.empty()) return;
    for (std::size_t length = node->items.size(); length >= 1; length /= 2) {
      for (std::size_t at = 0; node != nullptr && at < node->items.size();) {
        Derivation candidate = best_;
        Derivation* list = follow(candidate, way);
        const std::size_t end = std::min(at + length, list->items.size());
        list->items.erase(list->items.begin() + static_cast<std::ptrdiff_t>(at),
                          list->items.begin() + static_cast<std::ptrdiff_t>(end));
        if (!accept(candidate)) at = end;
        node = follow(best_, way);
      }
    }
  }

  // The node and everything below it becomes the simplest; otherwise its own choice alone.
  void simplify(const Way& way) {
    const Derivation* node = follow(best_, way);
    if (node == nullptr || node->size() == 0 || way.turns.empty()) return;
    Derivation candidate = best_;
    Derivation* changed = follow(candidate, way);
    *changed = Derivation{};
    if (accept(candidate)) return;
    if (node->value == 0) return;
    candidate = best_;
    follow(candidate, way)->value = 0;
    accept(candidate);
  }

  void lower(const Way& way) {
    for (;;) {
      const Derivation* node = follow(best_, way);
      if (node == nullptr || node->value <= 1) return;
      bool is_lower = false;
      for (const std::int64_t value : {node->value / 2, node->value - 1}) {
        Derivation candidate = best_;
        follow(candidate, way)->value = value;
        if ((is_lower = accept(candidate))) break;
      }
      if (!is_lower) return;
    }
  }

  bool accept(Derivation& candidate) {
    if (runs_left_ <= 0 || weight_of(candidate) >= weight_of(best_)) return false;
    --runs_left_;
    if (!still_fails_(candidate) || weight_of(candidate) >= weight_of(best_)) return false;
    best_ = std::move(candidate);
    return true;
  }

  Derivation best_;
  int runs_left_;
  const std::function<bool(Derivation&)>& still_fails_;
};

}  // namespace

Derivation shrink(const Derivation& tree, int most_runs, const std::function<bool(Derivation&)>& still_fails) {
  return Shrinker(tree, most_runs, still_fails).run();
}

}  // namespace lockstep::fuzz
