#include "engine/optim/adam.hpp"

#include "engine/kernels/optimizer.hpp"
#include "engine/optim/one_pass.hpp"

namespace lockstep::optim {

void Adam::update(const std::vector<Item>& items, const Options& options) {
  std::vector<Operand> operands;
  std::vector<std::int64_t> steps;
  operands.reserve(items.size() * 4);
  for (const Item& item : items) {
    operands.push_back({item.parameter, true});
    operands.push_back({item.grad, false});
    operands.push_back({item.state->tensors.at("exp_avg"), true});
    operands.push_back({item.state->tensors.at("exp_avg_sq"), true});
    steps.push_back(++item.state->step);
  }
  const kernels::AdamNumbers numbers{options.lr,  options.beta1,        options.beta2,
                                     options.eps, options.weight_decay, decay_ == Decay::decoupled};
  one_pass("adam", std::move(operands), 4,
           [steps, numbers](kernels::Execution on, const std::vector<kernels::View>& views,
                            const std::vector<std::size_t>& rows) {
             std::vector<kernels::AdamItem> batch;
             batch.reserve(rows.size());
             for (std::size_t i = 0; i < rows.size(); ++i)
               batch.push_back({views[4 * i], views[4 * i + 1], views[4 * i + 2], views[4 * i + 3], steps[rows[i]]});
             kernels::adam(on, batch, numbers);
           });
}

}  // namespace lockstep::optim
