// The modules and tensors of a model as plain data. The dry run numbers them; a module or parameter that appears twice
// has one number.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"

namespace lockstep::plan {

using ModuleId = int;
using TensorId = int;

struct TensorFacts {
  Dims sizes;
  DType dtype = DType::float32;
  bool requires_grad = false;
  std::uint64_t version = 0;  // increases when the values change
  int device = 0;             // equal for tensors on one device
};

struct NamedTensor {
  std::string name;  // in its module
  TensorId id = 0;
};

struct ModuleFacts {
  std::vector<ModuleId> children;  // all three in registration order
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

struct Facts {
  std::map<ModuleId, ModuleFacts> modules;
  std::map<TensorId, TensorFacts> tensors;

  // Both throw InternalError for an unknown id.
  const ModuleFacts& module(ModuleId id) const;
  const TensorFacts& tensor(TensorId id) const;
  void update(const Facts& newer);  // adds the entries of `newer`, or replaces those of the same ids

  // The module and its descendants, each once: parents before their children, or after them. `without`: modules that
  // are left out with their descendants.
  std::vector<ModuleId> pre_order(ModuleId root, const std::set<ModuleId>& without = {}) const;
  std::vector<ModuleId> post_order(ModuleId root) const;
};

std::int64_t bytes_of(const Dims& sizes, DType dtype);

}  // namespace lockstep::plan
