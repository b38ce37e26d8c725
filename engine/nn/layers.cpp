#include "engine/nn/layers.hpp"

#include <cmath>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/nn/arguments.hpp"

namespace lockstep::nn {

void init_linear(const Tensor& weight, const Tensor* bias) {
  const NoGrad no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(weight.size(-1)));
  uniform_(weight, -bound, bound);
  if (bias) uniform_(*bias, -bound, bound);
}

void Linear::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({out_, in_}, options.dtype, options.device));
  add_parameter("bias", bias_ ? empty({out_}, options.dtype, options.device) : Tensor());
  reset_parameters();
}

void Linear::reset_parameters() {
  init_linear(parameters[0].tensor, parameters[1].tensor.defined() ? &parameters[1].tensor : nullptr);
}

Value Linear::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  const Tensor& bias = parameters[1].tensor;
  return ops::linear(x, parameters[0].tensor, bias.defined() ? &bias : nullptr);
}

ModulePtr Linear::clone_shell() const { return std::make_shared<Linear>(in_, out_, bias_); }

Value ReLU::run(std::string_view method, const Inputs& inputs) { return ops::relu(only_input(*this, method, inputs)); }

ModulePtr ReLU::clone_shell() const { return std::make_shared<ReLU>(); }

Sequential::Sequential(std::vector<ModulePtr> modules, std::string type) : Module(std::move(type)) {
  for (std::size_t i = 0; i < modules.size(); ++i) add_child(str(i), std::move(modules[i]));
}

Value Sequential::run(std::string_view method, const Inputs& inputs) {
  require_forward(*this, method);
  if (children.empty()) return only_input(*this, method, inputs);
  Value x = children[0].module->call(inputs);
  for (std::size_t i = 1; i < children.size(); ++i) x = children[i].module->call(std::move(x));
  return x;
}

ModulePtr Sequential::clone_shell() const { return std::make_shared<Sequential>(std::vector<ModulePtr>(), type()); }

}  // namespace lockstep::nn
