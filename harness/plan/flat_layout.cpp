#include "harness/plan/flat_layout.hpp"

#include <algorithm>

#include "engine/core/checked.hpp"

namespace lockstep::plan {

namespace {

constexpr const char* where = "plan of a flat parameter";

std::int64_t rounded_up(std::int64_t value, std::int64_t step) {
  return checked_multiply(checked_add(value, step - 1, where) / step, step, where);
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<Dims>& sizes, int num_chunks, std::int64_t step) : num_chunks_(num_chunks) {
  for (const Dims& one : sizes) {
    begins_.push_back(rounded_up(total_, step));
    lengths_.push_back(static_cast<std::int64_t>(checked_bytes(one, 1, where)));
    total_ = checked_add(begins_.back(), lengths_.back(), where);
  }
  chunk_ = rounded_up(total_, num_chunks) / num_chunks;
}

std::int64_t FlatLayout::padded() const { return checked_multiply(chunk_, num_chunks_, where); }

FlatLayout::Part FlatLayout::part(std::size_t parameter, int rank) const {
  const std::int64_t from = checked_multiply(chunk_, rank, where), to = from + chunk_;
  const std::int64_t first = std::clamp(begins_[parameter], from, to);
  const std::int64_t last = std::clamp(begins_[parameter] + lengths_[parameter], from, to);
  if (first == last) return {};
  return {first - from, last - first};
}

std::int64_t flat_step(DType type) { return 16 / static_cast<std::int64_t>(size_of(type)); }

}  // namespace lockstep::plan
