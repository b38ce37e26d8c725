// Builds layers and the models of the documents by name and arguments, as the scenario language writes them.
//
//   ModulePtr m = build("Linear", {{16, 15}, {}}, {DType::float32, device});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.hpp"

namespace lockstep::nn {

struct BuildOptions {
  DType dtype = DType::float32;
  device::Device device;
};

struct ArgumentInfo {
  std::string name;
  bool required = true;
  Structure default_value;
};
struct BuilderInfo {
  std::string name;
  std::vector<ArgumentInfo> arguments;  // in positional order; a variadic builder (Sequential) takes only modules
  std::string summary;                  // one line
  bool variadic = false;
};

// All builders: the layers (Linear, ReLU, Sequential, ...) and the models (Net, UnitModule, Transformer, ...).
const std::vector<BuilderInfo>& builders();
bool has_builder(std::string_view name);
// Builds a module, draws its parameters from the rank's generator in registration order, and names them. `modules` are
// the children of a variadic builder. Throws Error for an unknown name and for wrong arguments.
ModulePtr build(std::string_view name, const Inputs& arguments, const BuildOptions& options,
                const std::vector<ModulePtr>& modules = {});

// Draws a weight and an optional bias uniformly within 1 / sqrt(size of the weight's last dim), the weight first. For
// modules that are described elsewhere.
void init_linear(const Tensor& weight, const Tensor* bias);

}  // namespace lockstep::nn
