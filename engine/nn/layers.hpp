// The layers. Each is a module with its settings; its parameters are in its slots. A forward takes one tensor `x` and
// throws Error for other inputs.
//
//   auto linear = created<Linear>(options, 16, 15, true);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/build.hpp"

namespace lockstep::nn {

// y (..., out) = x (..., in) @ weight^T + bias, with weight (out, in) and bias (out). Both are drawn uniformly within
// 1 / sqrt(in), the weight first.
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias) : Module("Linear"), in_(in), out_(out), bias_(bias) {}
  void create(const BuildOptions& options);  // creates and draws the parameters
  ModulePtr clone_shell() const override;
  // The model reads the output features as so many attention heads, each of which stays on one rank; 0: as no heads.
  std::int64_t num_heads = 0;

 protected:
  void draw_parameters() override;
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t in_, out_;
  bool bias_;
};

class ReLU : public Module {
 public:
  ReLU() : Module("ReLU") {}
  ModulePtr clone_shell() const override;

 protected:
  Structure run(std::string_view method, const Inputs& inputs) override;
};

// y = x / 2 * (1 + erf(x / sqrt(2))).
class Gelu : public Module {
 public:
  Gelu() : Module("GELU") {}
  ModulePtr clone_shell() const override;

 protected:
  Structure run(std::string_view method, const Inputs& inputs) override;
};

// Normalises the last dim, of size `dim`, to mean 0 and variance 1, then multiplies by weight (initially ones) and adds
// bias (initially zeros).
class LayerNorm : public Module {
 public:
  LayerNorm(std::int64_t dim, bool bias, double eps) : Module("LayerNorm"), dim_(dim), bias_(bias), eps_(eps) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t dim_;
  bool bias_;
  double eps_;
};

// x / sqrt(mean(x^2) + eps) over the last dim, of size `dim`, times weight (initially ones).
class RmsNorm : public Module {
 public:
  RmsNorm(std::int64_t dim, double eps) : Module("RMSNorm"), dim_(dim), eps_(eps) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t dim_;
  double eps_;
};

// Selects rows of weight (num_rows, dim) by int64 indices of any shape; the result has one more dim. The weight is
// drawn from the standard normal distribution.
class Embedding : public Module {
 public:
  Embedding(std::int64_t num_rows, std::int64_t dim) : Module("Embedding"), num_rows_(num_rows), dim_(dim) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t num_rows_, dim_;
};

// In training, sets each element to 0 with probability p and multiplies the others by 1 / (1 - p). In evaluation, and
// for p = 0, returns x itself.
class Dropout : public Module {
 public:
  explicit Dropout(double p);  // throws Error unless 0 <= p <= 1
  ModulePtr clone_shell() const override;

 protected:
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  double p_;
};

// Normalises x (N, dim, ...) per channel, then multiplies by weight (initially ones) and adds bias (initially zeros).
// In training it uses the mean and variance of the batch, and moves the buffers running_mean and running_var a tenth of
// the way towards them. In evaluation it uses the buffers.
class BatchNorm : public Module {
 public:
  explicit BatchNorm(std::int64_t dim) : Module("BatchNorm"), dim_(dim) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t dim_;
};

// The convolution of x (N, in, H, W) with weight (out, in, kernel, kernel), plus bias (out); the result is
// (N, out, H', W'). Both are drawn uniformly within 1 / sqrt(in * kernel^2), the weight first.
class Conv2d : public Module {
 public:
  struct Settings {
    std::int64_t in, out, kernel, stride, padding;
    bool bias;
  };
  explicit Conv2d(const Settings& settings) : Module("Conv2d"), settings_(settings) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  Settings settings_;
};

// Calls its children, named "0", "1", ..., in order. The first child receives all inputs, each other child the result
// of the previous one.
class Sequential : public Module {
 public:
  explicit Sequential(std::vector<ModulePtr> modules = {}, std::string type = "Sequential");
  ModulePtr clone_shell() const override;

 protected:
  Structure run(std::string_view method, const Inputs& inputs) override;
};

// Returns a new layer with its parameters created and drawn: created<Linear>(options, 16, 15, true).
template <class Layer, class... Settings>
std::shared_ptr<Layer> created(const BuildOptions& options, Settings... settings) {
  auto made = std::make_shared<Layer>(settings...);
  made->create(options);
  return made;
}

}  // namespace lockstep::nn
