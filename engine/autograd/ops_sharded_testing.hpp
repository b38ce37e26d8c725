// For tests of operations on sharded tensors: values, comparisons, errors, counts of collectives.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/comm/test_ranks.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"

namespace lockstep::sharded_testing {

using comm::testing_ranks::require;

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InternalError& error) {
    return str("internal: ", error.what());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
inline void require_error(const std::function<void()>& action, const std::string& fragment) {
  const std::string text = error_of(action);
  require(text.find(fragment) != std::string::npos, str("`", fragment, "` is not in: ", text));
}

inline void require_close(const Tensor& a, const Tensor& b, const std::string& what) {
  require(a.sizes() == b.sizes(), str(what, ": ", describe(a), " and ", describe(b)));
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  for (std::size_t i = 0; i < x.size(); ++i)
    require(std::fabs(x[i] - y[i]) <= 1e-12 * (1.0 + std::fabs(y[i])), str(what, ": ", x[i], " for ", y[i]));
}

// A float64 tensor of positive values that are not all equal.
inline Tensor values(const Dims& sizes, double start = 0.3) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < num_elements(sizes); ++i)
    all.push_back(start + 0.37 * static_cast<double>(i % 7) - 0.11 * static_cast<double>(i % 3));
  return from_values(all, sizes, DType::float64, {});
}

// Collectives in the log of this rank from `position` on.
inline int count_since(std::size_t position, comm::Operation operation, comm::Phase phase) {
  int count = 0;
  for (std::size_t i = position; i < comm::log().size(); ++i)
    count += comm::log()[i].operation == operation && comm::log()[i].phase == phase;
  return count;
}

}  // namespace lockstep::sharded_testing
