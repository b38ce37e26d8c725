#include "engine/nn/layers.hpp"

#include <cmath>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/arguments.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

void require_last_dim(const Module& module, const Tensor& x, std::int64_t dim) {
  const Dims& sizes = global_sizes(x);
  if (sizes.empty() || sizes.back() != dim)
    throw Error(str(module.type(), ".forward: an input of sizes ", to_text(sizes)),
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

void Linear::draw_parameters() {
  init_linear(parameters[0].tensor, parameters[1].tensor.defined() ? &parameters[1].tensor : nullptr);
}

Structure Linear::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  const Tensor& bias = parameters[1].tensor;
  return ops::linear(x, parameters[0].tensor, bias.defined() ? &bias : nullptr);
}

ModulePtr Linear::clone_shell() const {
  auto made = std::make_shared<Linear>(in_, out_, bias_);
  made->num_heads = num_heads;
  return made;
}

Structure ReLU::run(std::string_view method, const Inputs& inputs) {
  return ops::relu(only_input(*this, method, inputs));
}

ModulePtr ReLU::clone_shell() const { return std::make_shared<ReLU>(); }

Structure Gelu::run(std::string_view method, const Inputs& inputs) {
  return ops::gelu(only_input(*this, method, inputs));
}

ModulePtr Gelu::clone_shell() const { return std::make_shared<Gelu>(); }

void LayerNorm::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({dim_}, options.dtype, options.device));
  add_parameter("bias", bias_ ? empty({dim_}, options.dtype, options.device) : Tensor());
  reset_parameters();
}

void LayerNorm::draw_parameters() {
  const NoGrad no_grad;
  raw::fill_(parameters[0].tensor, 1.0);
  if (parameters[1].tensor.defined()) raw::zero_(parameters[1].tensor);
}

Structure LayerNorm::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  require_last_dim(*this, x, dim_);
  const Tensor& bias = parameters[1].tensor;
  return ops::layer_norm(x, 1, &parameters[0].tensor, bias.defined() ? &bias : nullptr, eps_);
}

ModulePtr LayerNorm::clone_shell() const { return std::make_shared<LayerNorm>(dim_, bias_, eps_); }

void RmsNorm::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({dim_}, options.dtype, options.device));
  reset_parameters();
}

void RmsNorm::draw_parameters() {
  const NoGrad no_grad;
  raw::fill_(parameters[0].tensor, 1.0);
}

Structure RmsNorm::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  require_last_dim(*this, x, dim_);
  return ops::rms_norm(x, 1, &parameters[0].tensor, eps_);
}

ModulePtr RmsNorm::clone_shell() const { return std::make_shared<RmsNorm>(dim_, eps_); }

void Embedding::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  add_parameter("weight", empty({num_rows_, dim_}, options.dtype, options.device));
  reset_parameters();
}

void Embedding::draw_parameters() {
  const NoGrad no_grad;
  normal_(parameters[0].tensor, 0.0, 1.0);
}

Structure Embedding::run(std::string_view method, const Inputs& inputs) {
  return ops::embedding(parameters[0].tensor, only_input(*this, method, inputs));
}

ModulePtr Embedding::clone_shell() const { return std::make_shared<Embedding>(num_rows_, dim_); }

Dropout::Dropout(double p) : Module("Dropout"), p_(p) {
  if (!(p >= 0.0 && p <= 1.0)) throw Error(str("Dropout: p is ", p), "it must be from 0 to 1");
}

Structure Dropout::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  return ops::dropout(x, p_, training);
}

ModulePtr Dropout::clone_shell() const { return std::make_shared<Dropout>(p_); }

void BatchNorm::create(const BuildOptions& options) {
  {
    const device::PurposeScope purpose(device::Purpose::parameter);
    add_parameter("weight", empty({dim_}, options.dtype, options.device));
    add_parameter("bias", empty({dim_}, options.dtype, options.device));
  }
  const device::PurposeScope purpose(device::Purpose::other);
  add_buffer("running_mean", empty({dim_}, options.dtype, options.device));
  add_buffer("running_var", empty({dim_}, options.dtype, options.device));
  reset_parameters();
}

void BatchNorm::draw_parameters() {
  const NoGrad no_grad;
  raw::fill_(parameters[0].tensor, 1.0);
  raw::zero_(parameters[1].tensor);
  raw::zero_(buffers[0].tensor);
  raw::fill_(buffers[1].tensor, 1.0);
}

Structure BatchNorm::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  return ops::batch_norm(x, &parameters[0].tensor, &parameters[1].tensor, &buffers[0].tensor, &buffers[1].tensor,
                         training);
}

ModulePtr BatchNorm::clone_shell() const { return std::make_shared<BatchNorm>(dim_); }

void Conv2d::create(const BuildOptions& options) {
  const device::PurposeScope purpose(device::Purpose::parameter);
  const auto& [in, out, kernel, stride, padding, bias] = settings_;
  add_parameter("weight", empty({out, in, kernel, kernel}, options.dtype, options.device));
  add_parameter("bias", bias ? empty({out}, options.dtype, options.device) : Tensor());
  reset_parameters();
}

void Conv2d::draw_parameters() {
  init_linear(lockstep::view(parameters[0].tensor, {settings_.out, -1}),
              parameters[1].tensor.defined() ? &parameters[1].tensor : nullptr);
}

Structure Conv2d::run(std::string_view method, const Inputs& inputs) {
  const Tensor& x = only_input(*this, method, inputs);
  const Tensor& bias = parameters[1].tensor;
  return ops::conv2d(x, parameters[0].tensor, bias.defined() ? &bias : nullptr, {settings_.stride, settings_.stride},
                     {settings_.padding, settings_.padding});
}

ModulePtr Conv2d::clone_shell() const { return std::make_shared<Conv2d>(settings_); }

Sequential::Sequential(std::vector<ModulePtr> modules, std::string type) : Module(std::move(type)) {
  for (std::size_t i = 0; i < modules.size(); ++i) add_child(str(i), std::move(modules[i]));
}

Structure Sequential::run(std::string_view method, const Inputs& inputs) {
  require_forward(*this, method);
  if (children.empty()) return only_input(*this, method, inputs);
  Structure x = children[0].module->call(inputs);
  for (std::size_t i = 1; i < children.size(); ++i) x = children[i].module->call(std::move(x));
  return x;
}

ModulePtr Sequential::clone_shell() const { return std::make_shared<Sequential>(std::vector<ModulePtr>(), type()); }

}  // namespace lockstep::nn
