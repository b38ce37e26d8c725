// The collectives of tensor parallelism and of redistributions, computed from the styles of the modules and from the
// values that pass their borders, independently of the engine.
//
// A styled module redistributes its input to the placement that it computes with, and its output to the placement that
// its style returns. Backward redistributes the gradients. The gradient of an input that colwise has gathered is a
// partial sum. It is reduced to the layout that the input had: one reduce_scatter for an input that was sharded, one
// all_reduce for a replicated one. A sharded tensor collects the partial gradients of all its uses first, so that they
// are reduced once: by the redistribution that made it, or before the operation that made it.
//
// The collectives of a module have the module as owner, those of backward too. An all_reduce before the backward of an
// operation belongs to the module whose partial gradient arrived last.
//
//   const Change change = plan.input(module, value);
//   plan.forward(change);
//   ... plan.backward(change);      // when the gradient of the result is complete
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/plan/facts.hpp"
#include "harness/plan/redistribution_cost.hpp"
#include "harness/plan/style_readings.hpp"

namespace lockstep::plan {

using Placements = std::vector<layout::Placement>;

// The gradient of a sharded tensor in the current backward: whether a use has left it partial.
struct OpenGradient {
  bool is_partial = false;
  std::string owner;  // of the last such use
};
using OpenGradientPtr = std::shared_ptr<OpenGradient>;

// A tensor that a module gets or returns. Without a layout it is plain, and `sizes` are those of this rank.
struct Value {
  Dims sizes;
  DType dtype = DType::float32;
  std::optional<layout::ShardedLayout> layout;
  OpenGradientPtr open{};
};

// A redistribution, with all that its backward needs.
struct Change {
  std::string owner;
  DType dtype = DType::float32;
  layout::ShardedLayout from;
  Placements to;
  Placements gradient;       // in which the gradient of the result arrives
  OpenGradientPtr source{};  // of the changed tensor, if that is sharded
  OpenGradientPtr result{};  // of the result
  layout::ShardedLayout result_layout() const { return {from.mesh, to, from.sizes}; }
};

class TensorParallelPlan {
 public:
  // Called for each collective, with all members set except phase, line and turn.
  TensorParallelPlan(int rank, std::function<void(Collective)> issue) : rank_(rank), issue_(std::move(issue)) {}

  struct StyledModule {
    std::string owner;  // "model.module"
    StyleChoice style;
    ModuleKind kind = ModuleKind::other;
    layout::MeshShape mesh;           // of one axis
    std::int64_t input_features = 0;  // of a Linear whose inputs the style converts
  };
  void add(ModuleId module, StyledModule styled) { modules_.insert_or_assign(module, std::move(styled)); }
  bool has(ModuleId module) const { return modules_.contains(module); }
  const StyledModule& styled(ModuleId module) const { return modules_.at(module); }
  // The comparison of the distributed parameters, and the broadcast of their values. `bytes`: per device, in full.
  void start(const std::string& owner, const layout::MeshShape& mesh, const std::vector<std::int64_t>& bytes,
             bool has_parameters, bool one_type);

  // The change of the first input of a module of colwise, rowwise and sequence_parallel, and of its output, whose sizes
  // are those of the full tensor.
  Change input(ModuleId module, const Value& value) const;
  Change output(ModuleId module, const Dims& sizes, DType dtype) const;
  // A change that the style states in full: one of prepare_input or prepare_output. Without `wanted` the value keeps
  // its placement.
  Change prepared(ModuleId module, const Value& value, const layout::Placement& given,
                  const std::optional<layout::Placement>& wanted) const;
  // A change by a step.
  static Change by_step(const std::string& owner, const layout::ShardedLayout& from, const Placements& to, DType dtype);

  void forward(const Change& change) const;
  // The gradient of the result is complete.
  void backward(const Change& change) const;
  // The gradient of a sharded tensor that an operation made is complete.
  void backward(const Value& value) const;
  // The gradient of a parameter that is a partial sum along the mesh of its module.
  void reduce_gradient(const std::string& owner, const layout::MeshShape& mesh, const Dims& sizes, DType dtype) const;
  void issue(const std::string& owner, const layout::MeshShape& mesh, const std::vector<Movement>& movements,
             DType dtype) const;
  int rank() const { return rank_; }

 private:
  layout::ShardedLayout layout_of(const StyledModule& module, const Value& value, layout::Placement given) const;

  int rank_ = 0;
  std::function<void(Collective)> issue_;
  std::map<ModuleId, StyledModule> modules_;
};

}  // namespace lockstep::plan
