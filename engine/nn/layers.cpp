#include "engine/nn/layers.hpp"

#include <cmath>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/nn/arguments.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

void require_last_dim(const Module& module, const Tensor& x, std::int64_t dim) {
  if (x.num_dims() == 0 || x.size(-1) != dim)
    throw Error(str(module.type(), ".forward: an input of sizes ", to_text(x.sizes())),
                str("the last dim must have size ", dim));
}

}  // namespace

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

void LayerNorm::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({dim_}, options.dtype, options.device));
  add_parameter("bias", bias_ ? empty({dim_}, options.dtype, options.device) : Tensor());
  reset_parameters();
}

void LayerNorm::reset_parameters() {
  const NoGrad no_grad;
  raw::fill_(parameters[0].tensor, 1.0);
  if (parameters[1].tensor.defined()) raw::zero_(parameters[1].tensor);
}

Value LayerNorm::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  require_last_dim(*this, x, dim_);
  const Tensor centered = ops::sub(x, ops::mean(x, {-1}, true));
  const Tensor variance = ops::mean(ops::mul(centered, centered), {-1}, true);
  const Tensor y = ops::mul(ops::mul(centered, ops::rsqrt(ops::add(variance, eps_))), parameters[0].tensor);
  const Tensor& bias = parameters[1].tensor;
  return bias.defined() ? ops::add(y, bias) : y;
}

ModulePtr LayerNorm::clone_shell() const { return std::make_shared<LayerNorm>(dim_, bias_, eps_); }

void RmsNorm::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({dim_}, options.dtype, options.device));
  reset_parameters();
}

void RmsNorm::reset_parameters() {
  const NoGrad no_grad;
  raw::fill_(parameters[0].tensor, 1.0);
}

Value RmsNorm::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  require_last_dim(*this, x, dim_);
  const Tensor scale = ops::rsqrt(ops::add(ops::mean(ops::mul(x, x), {-1}, true), eps_));
  return ops::mul(ops::mul(x, scale), parameters[0].tensor);
}

ModulePtr RmsNorm::clone_shell() const { return std::make_shared<RmsNorm>(dim_, eps_); }

void Embedding::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({num_rows_, dim_}, options.dtype, options.device));
  reset_parameters();
}

void Embedding::reset_parameters() {
  const NoGrad no_grad;
  normal_(parameters[0].tensor, 0.0, 1.0);
}

Value Embedding::run(std::string_view method, const Inputs& inputs) {
  const Tensor& rows = only_input(*this, method, inputs);
  Dims sizes = rows.sizes();
  sizes.push_back(dim_);
  return ops::reshape(ops::index_select(parameters[0].tensor, 0, ops::reshape(rows, {-1})), sizes);
}

ModulePtr Embedding::clone_shell() const { return std::make_shared<Embedding>(num_rows_, dim_); }

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
