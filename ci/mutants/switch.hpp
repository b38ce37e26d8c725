// The switch of the mutants, for builds made by ci/mutants.sh only: no other build contains it.
//
//   LOCKSTEP_MUTANT=17               mutant 17 is on
//   LOCKSTEP_MUTANTS_REACHED=FILE    no mutant is on; byte N of FILE becomes 1 when the point of mutant N is reached
//
// Both are read once, before main(), and hold for the processes that this one starts.
#pragma once

#include <iterator>
#include <type_traits>
#include <utility>

namespace lockstep::mutants {

extern int state;  // the number of the mutant that is on; 0: none; -1: points that are reached are recorded
void reach(int number);

inline bool on(int number) {
  if (state < 0) [[unlikely]]
    reach(number);
  return state == number;
}

// A range whose loop runs from the last element to the first if it is reversed.
template <class Iterator>
class Either {
 public:
  Either(Iterator at, bool reversed) : at_(std::move(at)), reversed_(reversed) {}
  decltype(auto) operator*() const {
    if (!reversed_) return *at_;
    Iterator before = at_;
    return *--before;
  }
  Either& operator++() {
    if (reversed_) {
      --at_;
    } else {
      ++at_;
    }
    return *this;
  }
  bool operator!=(const Either& other) const { return at_ != other.at_; }

 private:
  Iterator at_;
  bool reversed_;
};

template <class Range>
class InOrder {
 public:
  InOrder(bool reversed, Range&& range) : range_(std::forward<Range>(range)), reversed_(reversed) {}
  auto begin() { return Either(reversed_ ? std::end(range_) : std::begin(range_), reversed_); }
  auto end() { return Either(reversed_ ? std::begin(range_) : std::end(range_), reversed_); }

 private:
  Range range_;
  bool reversed_;
};
template <class Range>
InOrder<Range> in_order(bool reversed, Range&& range) {
  return {reversed, std::forward<Range>(range)};
}

// The value itself, or a copy that stays.
template <class T>
T& copied(bool copies, T& value) {
  static_assert(!std::is_const_v<T>);
  return copies ? *new T(value) : value;
}

}  // namespace lockstep::mutants
