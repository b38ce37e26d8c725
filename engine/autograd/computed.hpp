// The seam between an operation and the computation of its results. Selective checkpoints (checkpoint.hpp) return kept
// results here, and ComputationCount (watch.hpp) counts computations. Derivatives, and work of the parallel APIs such
// as the all-gathers of fully_shard, do not pass it. For the ops_*.cpp of this folder and dry runs.
//
//   return record("gelu", computed("gelu", [&] { return raw::gelu(a); }), {a}, {a}, ...);
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "engine/autograd/autograd.hpp"

namespace lockstep {

// One of the layers around the computations of a rank, from its construction to its destruction. The innermost is asked
// first: the latest, except that an outermost layer is behind all others.
class ComputationLayer {
 public:
  enum class Position { innermost, outermost };
  using Compute = std::function<std::vector<Tensor>()>;
  explicit ComputationLayer(Position position);
  virtual ~ComputationLayer();
  ComputationLayer(const ComputationLayer&) = delete;
  ComputationLayer& operator=(const ComputationLayer&) = delete;
  // The results of an operation: those of `compute`, which asks the next layer, or others of the same number.
  virtual std::vector<Tensor> results(const char* operation, const Compute& compute) = 0;
};

bool has_computation_layers();
// The results through all layers.
std::vector<Tensor> through_layers(const char* operation, const ComputationLayer::Compute& compute);

// The tensors of a result: a Tensor, or an aggregate of two, three or five.
inline std::vector<Tensor> tensors_of_result(const Tensor& result) { return {result}; }
template <class Result>
std::vector<Tensor> tensors_of_result(const Result& result) {
  if constexpr (requires { Result{Tensor(), Tensor(), Tensor(), Tensor(), Tensor()}; }) {
    const auto& [a, b, c, d, e] = result;
    return {a, b, c, d, e};
  } else if constexpr (requires { Result{Tensor(), Tensor(), Tensor()}; }) {
    const auto& [a, b, c] = result;
    return {a, b, c};
  } else {
    const auto& [a, b] = result;
    return {a, b};
  }
}
template <class Result>
Result result_of_tensors(const std::vector<Tensor>& tensors) {
  if constexpr (std::is_same_v<Result, Tensor>)
    return tensors.at(0);
  else if constexpr (requires { Result{Tensor(), Tensor(), Tensor(), Tensor(), Tensor()}; })
    return {tensors.at(0), tensors.at(1), tensors.at(2), tensors.at(3), tensors.at(4)};
  else if constexpr (requires { Result{Tensor(), Tensor(), Tensor()}; })
    return {tensors.at(0), tensors.at(1), tensors.at(2)};
  else
    return {tensors.at(0), tensors.at(1)};
}

// compute(), or the results that a layer returns instead. The function must not call differentiable operations.
template <class Compute>
std::invoke_result_t<const Compute&> computed(const char* operation, const Compute& compute) {
  using Result = std::invoke_result_t<const Compute&>;
  if (!has_computation_layers()) [[likely]]
    return compute();
  return result_of_tensors<Result>(through_layers(operation, [&compute] { return tensors_of_result(compute()); }));
}

}  // namespace lockstep
