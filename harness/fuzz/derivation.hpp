// The tree of choices by which the grammar derives one program. A choice has a name, so that a changed tree still
// derives a valid program: a choice that the tree lacks takes its simplest alternative, which is always 0, and a choice
// that no longer occurs is dropped. The shrinker changes the tree, never the text.
//
//   Derivation tree;                                     // empty
//   Random random(program_seed(seed, index));
//   Program program = derive(Chooser(tree, &random));    // draws, and records every choice in `tree`
//   Program again = derive(Chooser(tree));               // repeats them
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t bound);  // in [0, bound); bound >= 1

 private:
  std::uint64_t state_;
};

// The seed of program `index` of a run.
std::uint64_t program_seed(std::uint64_t seed, std::uint64_t index);

struct Derivation {
  std::int64_t value = 0;                                 // the chosen alternative
  std::map<std::string, Derivation, std::less<>> fields;  // choices below this one
  std::vector<Derivation> items;                          // of a list
  bool is_used = false;                                   // by the last derivation

  bool is_simplest() const;  // every choice in it is the simplest
  // The number of choices that are not the simplest, list items included: what the shrinker makes smaller.
  int size() const;
  void drop_unused();  // the choices that the last derivation did not make
};

// "model/blocks/2/kind=3", one per choice that is not the simplest, in order. Items of lists appear by their index, or
// as `*` with `anonymous`.
std::vector<std::string> choices_of(const Derivation& tree, bool anonymous);

// Makes the choices below one node of a tree. With `random` a choice that the tree lacks is drawn, otherwise it is the
// simplest. Every choice made is recorded.
class Chooser {
 public:
  explicit Chooser(Derivation& node, Random* random = nullptr) : node_(&node), random_(random) {}

  // An alternative from 0, by weights. A recorded value beyond the alternatives, or without weight here, counts as 0.
  int pick(std::string_view name, std::initializer_list<int> weights);
  int pick(std::string_view name, const std::vector<int>& weights);
  std::int64_t number(std::string_view name, std::int64_t low, std::int64_t high);  // low is the simplest
  bool chance(std::string_view name, int percent);                                  // false is the simplest
  Chooser in(std::string_view name);
  // The choosers of the items of a list of `least` to `most` items; `least` is the simplest length.
  std::vector<Chooser> items(std::string_view name, int least, int most);

 private:
  Derivation& field(std::string_view name, bool* is_new);  // marks it as used
  Derivation* node_;
  Random* random_;
};

}  // namespace lockstep::fuzz
