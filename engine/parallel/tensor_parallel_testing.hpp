// For tests of tensor_parallel: a plain and a styled copy of a module, run on the same input; values, gradients and
// collectives are compared.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "engine/autograd/ops_sharded.hpp"
#include "engine/parallel/tensor_parallel.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel::testing {

inline void require_close(const Tensor& actual, const Tensor& expected, const std::string& subject,
                          double tolerance = 1e-12) {
  require(actual.defined() && expected.defined(), str(subject, ": a tensor is missing"));
  require(!actual.is_sharded() && !expected.is_sharded(), str(subject, ": give plain tensors"));
  require(actual.sizes() == expected.sizes(), str(subject, ": ", describe(actual), " for ", describe(expected)));
  const std::vector<double> a = to_doubles(actual), b = to_doubles(expected);
  for (std::size_t i = 0; i < a.size(); ++i)
    require(std::fabs(a[i] - b[i]) <= tolerance * (1.0 + std::fabs(b[i])),
            str(subject, "[", i, "]: ", a[i], " for ", b[i]));
}

// The counts of the collectives of redistribution in the log of this rank from `position` on.
struct Counts {
  int all_gather = 0, all_reduce = 0, reduce_scatter = 0, all_to_all = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};
inline std::string to_text(const Counts& counts) {
  return str("all_gather ", counts.all_gather, ", all_reduce ", counts.all_reduce, ", reduce_scatter ",
             counts.reduce_scatter, ", all_to_all ", counts.all_to_all);
}
// Requires that all of them have this phase and this owner.
inline Counts counts_since(std::size_t position, comm::Phase phase, const std::string& owner) {
  Counts counts;
  for (std::size_t i = position; i < comm::log().size(); ++i) {
    const comm::LogEntry& entry = comm::log()[i];
    require(entry.family == comm::Family::tensor_parallel, str("the family ", name_of(entry.family)));
    require(entry.phase == phase, str(name_of(entry.operation), " in phase ", name_of(entry.phase)));
    require(entry.owner == owner, str(name_of(entry.operation), " of owner `", entry.owner, "`, not ", owner));
    counts.all_gather += entry.operation == comm::Operation::all_gather;
    counts.all_reduce += entry.operation == comm::Operation::all_reduce;
    counts.reduce_scatter += entry.operation == comm::Operation::reduce_scatter;
    counts.all_to_all += entry.operation == comm::Operation::all_to_all;
  }
  return counts;
}
inline void require_counts(const Counts& counts, const Counts& expected, const std::string& subject) {
  require(counts == expected, str(subject, ": ", to_text(counts), "; expected ", to_text(expected)));
}

// The local shard under a placement whose dim may be negative.
inline layout::Placement normalized(layout::Placement placement, int num_dims) {
  if (placement.is_shard() && placement.dim < 0) placement.dim += num_dims;
  return placement;
}
inline Tensor shard_of(const Tensor& full, const DeviceMesh& mesh, const layout::Placement& placement) {
  return raw::clone(local_shard_of(full, {mesh.shape(), {normalized(placement, full.num_dims())}, full.sizes()}));
}

inline Tensor random_values(std::uint64_t seed, const Dims& sizes) {
  RankContext::current().generator().seed(seed);
  return randn(sizes, DType::float64, {});
}

}  // namespace lockstep::parallel::testing
