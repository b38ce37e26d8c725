// What the plan knows of a model: its modules and parameters as plain values, under numbers that the recorder of the
// trace gives them. A module or parameter that appears twice has one number.
#pragma once

#include <cstdint>
#include <map>
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
  std::uint64_t version = 0;  // grows when its values change
};

struct NamedTensor {
  std::string name;  // local
  TensorId id = 0;
};

struct ModuleFacts {
  std::vector<ModuleId> children;  // in registration order, as are parameters and buffers
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

struct Facts {
  std::map<ModuleId, ModuleFacts> modules;
  std::map<TensorId, TensorFacts> tensors;

  const ModuleFacts& module(ModuleId id) const;
  const TensorFacts& tensor(TensorId id) const;
  void update(const Facts& newer);  // takes over what `newer` knows

  // The module and all below it, each once: a parent before its children, or after them.
  std::vector<ModuleId> pre_order(ModuleId root) const;
  std::vector<ModuleId> post_order(ModuleId root) const;
};

std::int64_t bytes_of(const Dims& sizes, DType dtype);

}  // namespace lockstep::plan
