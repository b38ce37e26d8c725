// For tests: inputs that every rank can compute for all ranks, and plain references of the collectives, with the
// reduction tree of reduce.hpp.
#pragma once

#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/core/types.hpp"

namespace lockstep::comm::testing_references {

// The input of a rank. Every rank computes the same values for it.
template <class T>
std::vector<T> values_for(int rank, std::int64_t count) {
  std::mt19937 engine(static_cast<unsigned>(7919 * rank + 17));
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto word = static_cast<std::int32_t>(engine());
    if constexpr (std::is_same_v<T, std::uint8_t>)
      values.push_back(static_cast<std::uint8_t>(word & 1));
    else if constexpr (std::is_integral_v<T>)
      values.push_back(static_cast<T>(word));
    else
      values.push_back(static_cast<T>(static_cast<float>(word) * 1.1920929e-9f));
  }
  return values;
}

template <class C>
C combine(ReduceOp op, C a, C b) {
  if constexpr (std::is_integral_v<C> && sizeof(C) >= 4) {
    using U = std::make_unsigned_t<C>;
    if (op == ReduceOp::sum) return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
    if (op == ReduceOp::product) return static_cast<C>(static_cast<U>(a) * static_cast<U>(b));
  }
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return static_cast<C>(a + b);
    case ReduceOp::product:
      return static_cast<C>(a * b);
    case ReduceOp::max:
      return a > b || a != a ? a : b;
    case ReduceOp::min:
      return a < b || a != a ? a : b;
  }
  return a;
}

// Level by level: neighbours are combined in pairs, and an odd last one moves up.
template <class C>
C tree(ReduceOp op, std::vector<C>& level) {
  for (std::size_t size = level.size(); size > 1; size = (size + 1) / 2) {
    for (std::size_t i = 0; i + 1 < size; i += 2) level[i / 2] = combine(op, level[i], level[i + 1]);
    if (size % 2 == 1) level[size / 2] = level[size - 1];
  }
  return level[0];
}

template <class T>
std::vector<T> reduced(ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  using C = ComputeType<T>;
  std::vector<T> out;
  std::vector<C> level;
  for (std::size_t i = 0; i < inputs[0].size(); ++i) {
    level.clear();
    for (const std::vector<T>& input : inputs) level.push_back(static_cast<C>(input[i]));
    C result = tree(op, level);
    if constexpr (std::is_floating_point_v<C>) {
      if (op == ReduceOp::mean) result = result / static_cast<C>(inputs.size());
    }
    out.push_back(static_cast<T>(result));
  }
  return out;
}

template <class T>
std::vector<T> concatenated(int size, std::int64_t count) {
  std::vector<T> all;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<T> shard = values_for<T>(rank, count);
    all.insert(all.end(), shard.begin(), shard.end());
  }
  return all;
}

template <class T>
std::vector<T> shard_of(const std::vector<T>& all, std::int64_t index, std::int64_t count) {
  return std::vector<T>(all.begin() + index * count, all.begin() + (index + 1) * count);
}

}  // namespace lockstep::comm::testing_references
