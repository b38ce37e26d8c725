// Adam and AdamW. The state is step, exp_avg (first moment) and exp_avg_sq (second moment). They differ in the weight
// decay: Adam adds it to the gradient, AdamW scales the parameter before the update.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

class Adam : public Optimizer {
 public:
  enum class Decay { in_gradient, decoupled };
  explicit Adam(std::vector<Group> groups, Decay decay = Decay::in_gradient)
      : Optimizer(std::move(groups)), decay_(decay) {}
  std::string_view type() const override { return decay_ == Decay::decoupled ? "AdamW" : "Adam"; }

 protected:
  std::vector<StateKey> state_keys(const Options&) const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  void update(const std::vector<Item>& items, const Options& options) override;

 private:
  Decay decay_;
};

}  // namespace lockstep::optim
