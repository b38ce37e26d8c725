// Adam. State: step, exp_avg (first moment) and exp_avg_sq (second moment).
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Group> groups) : Optimizer(std::move(groups)) {}
  std::string_view type() const override { return "Adam"; }

 protected:
  void create_state(const Tensor& parameter, ParameterState& state, const Options& options) override;
  void update(const std::vector<Item>& items, const Options& options) override;
};

}  // namespace lockstep::optim
