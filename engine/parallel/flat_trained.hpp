// What the parameters of an optimizer over a flat-sharded model stand for.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_parameter_shards.hpp"

namespace lockstep::parallel {

// A parameter of the optimizer.
struct Trained {
  std::string name;                           // in the optimizer
  std::shared_ptr<FlatParameterShards> unit;  // null: not of a flat parameter
  std::size_t index = 0;                      // of the parameter in the unit
  bool is_chunk = false;                      // the flat parameter itself
};
// An original parameter of a unit.
struct Original {
  std::string name;
  std::size_t index = 0;
};

// The parameters of each group. Throws Error where one belongs to a unit whose full parameters are summoned.
std::vector<std::vector<Trained>> trained_by(optim::Optimizer& optimizer);
// The original parameters of the groups, each with the parameter of the optimizer that stands for it. In a group with a
// flat parameter they have the order of the model before sharding, which `_flat_param` does not keep; in others that of
// the optimizer.
struct TrainedOriginal {
  const Trained* trained;
  Original original;
};
std::vector<std::vector<TrainedOriginal>> originals_in_order(optim::Optimizer& optimizer,
                                                             const std::vector<std::vector<Trained>>& groups);
// The original parameters that a parameter of the optimizer stands for. "u1._flat_param" stands for "u1.l1.weight", ...
std::vector<Original> originals_of(const Trained& trained);

}  // namespace lockstep::parallel
