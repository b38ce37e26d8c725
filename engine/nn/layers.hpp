// The layers. Each is a module with its settings; parameters lie in its slots.
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

// y = x @ weight^T + bias; weight (out, in), both drawn uniformly within 1 / sqrt(in), the weight first.
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias) : Module("Linear"), in_(in), out_(out), bias_(bias) {}
  void create(const BuildOptions& options);  // makes and draws the parameters
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t in_, out_;
  bool bias_;
};

class ReLU : public Module {
 public:
  ReLU() : Module("ReLU") {}
  ModulePtr clone_shell() const override;

 protected:
  Value run(std::string_view method, const Inputs& inputs) override;
};

// x / 2 * (1 + erf(x / sqrt(2))).
class Gelu : public Module {
 public:
  Gelu() : Module("GELU") {}
  ModulePtr clone_shell() const override;

 protected:
  Value run(std::string_view method, const Inputs& inputs) override;
};

// Over the last dim, of size `dim`: to mean 0 and variance 1, then times weight (ones), plus bias (zeros).
class LayerNorm : public Module {
 public:
  LayerNorm(std::int64_t dim, bool bias, double eps) : Module("LayerNorm"), dim_(dim), bias_(bias), eps_(eps) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t dim_;
  bool bias_;
  double eps_;
};

// Over the last dim: x / sqrt(mean(x^2) + eps), times weight (ones).
class RmsNorm : public Module {
 public:
  RmsNorm(std::int64_t dim, double eps) : Module("RMSNorm"), dim_(dim), eps_(eps) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t dim_;
  double eps_;
};

// Rows of weight (num_rows, dim), drawn normally, by integers of any shape.
class Embedding : public Module {
 public:
  Embedding(std::int64_t num_rows, std::int64_t dim) : Module("Embedding"), num_rows_(num_rows), dim_(dim) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t num_rows_, dim_;
};

// While training, each element is dropped with probability p and the kept ones grow by 1 / (1 - p); otherwise x itself.
class Dropout : public Module {
 public:
  explicit Dropout(double p);  // throws Error unless 0 <= p <= 1
  ModulePtr clone_shell() const override;

 protected:
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  double p_;
};

// Over (N, dim, ...), one mean a channel: while training of the batch, and the buffers running_mean and running_var
// move a tenth of the way to it; otherwise theirs. Then times weight (ones), plus bias (zeros).
class BatchNorm : public Module {
 public:
  explicit BatchNorm(std::int64_t dim) : Module("BatchNorm"), dim_(dim) {}
  void create(const BuildOptions& options);
  ModulePtr clone_shell() const override;

 protected:
  void draw_parameters() override;
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  std::int64_t dim_;
};

// Windows of x (N, in, H, W) times weight (out, in, kernel, kernel), plus bias, both drawn uniformly within
// 1 / sqrt(in * kernel^2), the weight first. Gives (N, out, H', W').
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
  Value run(std::string_view method, const Inputs& inputs) override;

 private:
  Settings settings_;
};

// Calls its children, named "0", "1", ..., one after the other: the first takes all inputs, the others one.
class Sequential : public Module {
 public:
  explicit Sequential(std::vector<ModulePtr> modules = {}, std::string type = "Sequential");
  ModulePtr clone_shell() const override;

 protected:
  Value run(std::string_view method, const Inputs& inputs) override;
};

// A layer with its parameters made and drawn: created<Linear>(options, 16, 15, true).
template <class Layer, class... Settings>
std::shared_ptr<Layer> created(const BuildOptions& options, Settings... settings) {
  auto made = std::make_shared<Layer>(settings...);
  made->create(options);
  return made;
}

}  // namespace lockstep::nn
