// Dynamic loss scaling, so that small gradients do not underflow in float16. The loss is multiplied by a scale, and the
// gradients are divided by it before the step. A step with gradients that are not finite is skipped and reduces the
// scale. A number of good steps in a row increases it.
//
// With sharded gradients, one all_reduce per mesh (family tensor_parallel, as in clipping) makes all ranks take the
// step or none. All ranks call together. Plain gradients are assumed to be the same on all ranks, unless MeshesOfParts
// names a mesh for them. One scaler can serve several optimizers: each takes or skips its step by its own gradients,
// and the scale falls if one of them skips.
//
//   GradScaler scaler({.init_scale = 1024});
//   backward({ops::mul(loss, scaler.scale())});
//   scaler.unscale(*adam);                     // only if the gradients are used before the step, as in clipping
//   scaler.step(*adam);
//   scaler.update();
//
// Follows torch.amp.GradScaler and its sharded variant in PyTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/layout/mesh_shape.hpp"
#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

// A service of the rank. `find` gives the meshes over whose ranks the plain parameters of an optimizer are parts of a
// larger tensor, as those of a flat parameter are: in the same order on all ranks, whether a rank has gradients or not.
struct MeshesOfParts {
  explicit MeshesOfParts(RankContext&) {}
  std::function<std::vector<layout::MeshShape>(Optimizer&)> find{};
};

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   // above 1
  double backoff_factor = 0.5;  // below 1
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // if false, scale() is 1 and step() is the optimizer's step
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});  // throws Error for options out of range

  double scale() const { return options_.enabled ? scale_ : 1.0; }
  std::int64_t growth_tracker() const { return growth_tracker_; }  // number of good updates since the scale changed
  const GradScalerOptions& options() const { return options_; }

  // Divides the gradients of the optimizer's parameters by the scale and records whether all gradients of all ranks are
  // finite. Throws Error if called twice between updates or after the step, for float16 gradients, and if no parameter
  // has a gradient.
  void unscale(Optimizer& optimizer);
  // Unscales unless that is done, and steps if all gradients are finite. Returns whether it stepped. Throws Error if
  // called twice between updates.
  bool step(Optimizer& optimizer);
  // Sets the scale for the next iteration: by the rule above, or to new_scale. Forgets the state of all optimizers. The
  // first form throws Error if no optimizer was unscaled or stepped, the second one if new_scale is out of range.
  void update();
  void update(double new_scale);

  struct State {
    double scale = 0.0, growth_factor = 0.0, backoff_factor = 0.0;
    std::int64_t growth_interval = 0, growth_tracker = 0;
  };
  std::optional<State> state_dict() const;   // nullopt if the scaler is not enabled
  void load_state_dict(const State& state);  // throws Error for values out of range

 private:
  enum class Stage { ready, unscaled, stepped };
  struct OptimizerState {
    Stage stage = Stage::ready;
    bool found_inf = false;
  };
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::map<std::uint64_t, OptimizerState> optimizers_;  // since the last update, by the number of the optimizer
};

}  // namespace lockstep::optim
