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

// compute(), or the results that a layer returns instead. The result is a Tensor or an aggregate of two or three. The
// function must not call differentiable operations.
template <class Compute>
std::invoke_result_t<const Compute&> computed(const char* operation, const Compute& compute) {
  using Result = std::invoke_result_t<const Compute&>;
  constexpr std::size_t count = sizeof(Result) / sizeof(Tensor);
  static_assert(count >= 1 && count <= 3 && sizeof(Result) % sizeof(Tensor) == 0);
  if (!has_computation_layers()) [[likely]]
    return compute();
  const std::vector<Tensor> results = through_layers(operation, [&compute]() -> std::vector<Tensor> {
    const Result made = compute();
    if constexpr (std::is_same_v<Result, Tensor>) {
      return {made};
    } else if constexpr (count == 2) {
      const auto& [a, b] = made;
      return {a, b};
    } else {
      const auto& [a, b, c] = made;
      return {a, b, c};
    }
  });
  if constexpr (std::is_same_v<Result, Tensor>) {
    return results[0];
  } else if constexpr (count == 2) {
    return {results[0], results[1]};
  } else {
    return {results[0], results[1], results[2]};
  }
}

}  // namespace lockstep
