// Observing the progress of backward without changing the order in which gradients are summed, and the operations and
// computations of a rank.
//
//   tensors = watch_passing(tensors, [] { /* their gradients are complete */ });
//   const OperationWatch watch([](const char* name, auto& inputs, auto& results) { ... });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

// Records an identity over the tensors. The caller continues with the returned ones; those that need no gradient are
// returned unchanged. Each gradient of these tensors is passed on as it arrives instead of being summed first. So a
// tensor that has other uses gets the same bits as in a graph without the watch.
// `before` is called once per backward, when all gradients have arrived, and not at all when none arrived. Of inputs of
// a module, the caller gets views that no recorded operation may change in place, because that would bypass `before`.
// So it does of results that other tensors show: views, leaves, and those that are passed as `shown_results`.
enum class Watched { results, shown_results, inputs };
std::vector<Tensor> watch_passing(std::vector<Tensor> tensors, std::function<void()> before,
                                  Watched watched = Watched::results);

// Called with the name, the differentiable inputs and the results of an operation. Both lists may contain undefined
// tensors.
using SeenOperation =
    std::function<void(const char* name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results)>;
// Called with the name and the differentiable inputs of an operation whose results have been computed.
using ComputedOperation = std::function<void(const char* name, const std::vector<Tensor>& inputs)>;
// Within the scope `seen` is called for every differentiable operation of this rank, recorded or not, backward
// excepted. `computed` is called before it, and also for the last operation of a recomputation, which ends when the
// tensors of that operation are saved. Neither may perform operations. Of nested scopes the innermost applies.
struct WatchedOperations {
  SeenOperation seen;
  ComputedOperation computed;
};
class OperationWatch {
 public:
  explicit OperationWatch(SeenOperation seen, ComputedOperation computed = {});
  ~OperationWatch();
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;

 private:
  WatchedOperations functions_;
  const WatchedOperations* previous_;
};

// Counts, within the scope, how often this rank computes the results of each operation that has a derivative, views and
// in-place operations excepted: one count per call, and none where a selective checkpoint returns kept results. An
// operation on sharded operands counts as the operations on local shards that it consists of.
class ComputationCount {
 public:
  ComputationCount();
  ~ComputationCount();
  ComputationCount(const ComputationCount&) = delete;
  ComputationCount& operator=(const ComputationCount&) = delete;
  const std::map<std::string, std::int64_t>& counts() const;  // by operation

 private:
  class Layer;
  std::unique_ptr<Layer> layer_;
};

}  // namespace lockstep
