#include "engine/optim/sgd.hpp"

#include "engine/kernels/optimizer.hpp"
#include "engine/optim/one_pass.hpp"

namespace lockstep::optim {

void Sgd::update(const std::vector<Item>& items, const Options& options) {
  std::vector<Operand> operands;
  std::vector<bool> first_step;
  operands.reserve(items.size() * 3);
  for (const Item& item : items) {
    add_state(item.parameter, *item.state, options);  // if momentum was switched on after the first step
    operands.push_back({item.parameter, true});
    operands.push_back({item.grad, false});
    operands.push_back({options.momentum != 0 ? item.state->tensors.at("momentum_buffer") : Tensor(), true});
    first_step.push_back(item.state->step == 0);
    ++item.state->step;
  }
  const kernels::SgdNumbers numbers{options.lr, options.momentum, options.weight_decay};
  one_pass("sgd", std::move(operands), 3,
           [first_step, numbers](kernels::Execution on, const std::vector<kernels::View>& views,
                                 const std::vector<std::size_t>& rows) {
             std::vector<kernels::SgdItem> batch;
             batch.reserve(rows.size());
             for (std::size_t i = 0; i < rows.size(); ++i)
               batch.push_back({views[3 * i], views[3 * i + 1], views[3 * i + 2], first_step[rows[i]]});
             kernels::sgd(on, batch, numbers);
           });
}

}  // namespace lockstep::optim
