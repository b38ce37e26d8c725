// Building modules: the layers and the documents' models by name, with arguments, as the scenario language writes them.
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
  Value default_value;
};
struct BuilderInfo {
  std::string name;
  std::vector<ArgumentInfo> arguments;  // in positional order; a variadic builder (Sequential) takes modules only
  bool variadic = false;
  std::string summary;  // one line
};

// Layers: Linear(in, out, bias=true), ReLU(), Sequential(modules...), and what later joins them. Models: Net,
// UnitModule, ...
const std::vector<BuilderInfo>& builders();
bool has_builder(std::string_view name);
// Parameters are drawn from the rank's generator in the order of spec. Modules as arguments of Sequential come as
// `modules`.
ModulePtr build(std::string_view name, const Inputs& arguments, const BuildOptions& options,
                const std::vector<ModulePtr>& modules = {});

// The expressions behind Linear's and friends' initial values, for modules described elsewhere.
void init_linear(const Tensor& weight, const Tensor* bias);

}  // namespace lockstep::nn
