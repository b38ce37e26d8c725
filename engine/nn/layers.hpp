// The layers. Each is a module with its settings; parameters lie in its slots.
//
//   auto linear = std::make_shared<Linear>(16, 15, true);  linear->create(options);
#pragma once

#include <cstdint>
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
  void reset_parameters() override;
  ModulePtr clone_shell() const override;

 protected:
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

// Calls its children, named "0", "1", ..., one after the other: the first takes all inputs, the others one.
class Sequential : public Module {
 public:
  explicit Sequential(std::vector<ModulePtr> modules = {}, std::string type = "Sequential");
  ModulePtr clone_shell() const override;

 protected:
  Value run(std::string_view method, const Inputs& inputs) override;
};

}  // namespace lockstep::nn
