// The switch of the mutants, for builds made by ci/mutants.sh only: no other build contains it.
//
//   LOCKSTEP_MUTANT=17               mutant 17 is on
//   LOCKSTEP_MUTANTS_REACHED=FILE    no mutant is on; byte N of FILE becomes 1 when the point of mutant N is reached, and 3 when
//                                    the mutant would make a difference there
//
// Both are read once, before main(), and hold for the processes that this one starts.
#pragma once

#include <iterator>
#include <type_traits>
#include <utility>

namespace lockstep::mutants {

extern int state;  // the number of the mutant that is on; 0: none; -1: points that are reached are recorded
void reach(int number, bool differs);

inline bool on(int number) {
  if (state < 0) [[unlikely]]
    reach(number, true);
  return state == number;
}
// For points with a probe, while points are recorded.
inline bool seen(int number, bool differs) {
  reach(number, differs);
  return false;
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
InOrder<Range> in_order(int number, Range&& range) {
  if (state < 0) [[unlikely]] {
    const auto begin = std::begin(range);
    const auto end = std::end(range);
    reach(number, begin != end && std::next(begin) != end);
  }
  return {state == number, std::forward<Range>(range)};
}

// The value itself, or a copy that stays.
template <class T>
T& copied(bool copies, T& value) {
  static_assert(!std::is_const_v<T>);
  return copies ? *new T(value) : value;
}

}  // namespace lockstep::mutants
