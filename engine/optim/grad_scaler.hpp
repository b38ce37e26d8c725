// Dynamic scaling of losses, so that small gradients do not vanish in float16: the loss is multiplied by a scale, the
// gradients are divided by it before the step, a step whose gradients are not all finite is left out, and the scale
// falls after such a step and rises after enough good ones.
//
// Ranks that hold sharded gradients tell each other whether theirs are finite, with one all_reduce a mesh (of the
// family tensor_parallel, as in clipping): all take the step or none. All ranks call together. Plain gradients are
// taken to be the same on all ranks. A scaler serves several optimizers; each steps or not by its own gradients, the
// scale falls when one of them did not.
//
//   GradScaler scaler({.init_scale = 1024});
//   backward({ops::mul(loss, scaler.scale())});
//   scaler.unscale(*adam);                     // only where gradients are looked at before the step, as in clipping
//   scaler.step(*adam);
//   scaler.update();
//
// After PyTorch's torch.amp.GradScaler and its sharded form.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   // above 1
  double backoff_factor = 0.5;  // below 1
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // else scale() is 1, and steps are those of the optimizer
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});  // throws Error for options out of range

  double scale() const { return options_.enabled ? scale_ : 1.0; }
  std::int64_t growth_tracker() const { return growth_tracker_; }  // good updates since the scale changed
  const GradScalerOptions& options() const { return options_; }

  // Divides the gradients of the optimizer's parameters by the scale and notes whether all of all ranks are finite.
  // Once between updates, before the step; throws Error otherwise, and for gradients of float16.
  void unscale(Optimizer& optimizer);
  // Unscales when that was not done, and steps when all is finite. Gives whether it did. Once between updates.
  bool step(Optimizer& optimizer);
  // The scale for the next iteration, or this one; starts anew with every optimizer.
  void update();
  void update(double new_scale);
  // Whether some gradient of this optimizer was not finite at its last unscale, on any rank.
  bool found_inf(const Optimizer& optimizer) const;

  struct State {
    double scale = 0.0, growth_factor = 0.0, backoff_factor = 0.0;
    std::int64_t growth_interval = 0, growth_tracker = 0;
  };
  std::optional<State> state_dict() const;  // none when it is not enabled
  void load_state_dict(const State& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct OfOptimizer {
    Stage stage = Stage::ready;
    bool found_inf = false;
  };
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::map<const Optimizer*, OfOptimizer> optimizers_;  // since the last update
};

}  // namespace lockstep::optim
