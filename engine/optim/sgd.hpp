// Stochastic gradient descent with momentum and weight decay. Its state is momentum_buffer, if momentum is not 0.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/optim/optimizer.hpp"

namespace lockstep::optim {

class Sgd : public Optimizer {
 public:
  explicit Sgd(std::vector<Group> groups) : Optimizer(std::move(groups)) {}
  std::string_view type() const override { return "SGD"; }

 protected:
  std::vector<StateKey> state_keys(const Options& options) const override {
    return {{"momentum_buffer", options.momentum != 0}};
  }
  void update(const std::vector<Item>& items, const Options& options) override;
};

}  // namespace lockstep::optim
