// Models that a scenario file describes, as modules of the engine. Expressions give their children, parameters and
// buffers; methods are expressions that each call evaluates. Also builds any model by name.
//
//   Scope scope{frame};
//   scope.build_options = &options;
//   nn::ModulePtr m = build_module("MultiForward", {}, {}, scope);
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/run/values/scope.hpp"

namespace lockstep::run {

class ScenarioModule final : public nn::Module {
 public:
  // `frame` has no names: it only gives access to the models and the session.
  ScenarioModule(const scenario::ModelDefinition& description, FramePtr frame,
                 std::vector<std::pair<std::string, Value>> arguments);

  std::vector<std::string> methods() const override;
  nn::ModulePtr clone_shell() const override;

  // Finds an argument, child, parameter, buffer or method.
  bool find_own(const std::string& name, Value& found);
  // Builds children, then parameters, then buffers. Random values are drawn in this order.
  void build(const nn::BuildOptions& options);

 protected:
  void draw_parameters() override;
  nn::Structure run(std::string_view name, const nn::Inputs& inputs) override;

 private:
  // The inputs and options of a call, with defaults evaluated in `scope`.
  Locals bind_inputs(const scenario::MethodDefinition& method, const nn::Inputs& inputs, const Scope& scope) const;

  const scenario::ModelDefinition& description_;  // owned by the scenario, which outlives the case
  FramePtr frame_;
  std::vector<std::pair<std::string, Value>> arguments_;
};

// Whether a call of `name` builds a module: a model of the file, or a layer or model of the engine.
bool is_buildable(const std::string& name, const Scope& scope);
// Throws Error for wrong arguments, and for a model that nests too deep.
nn::ModulePtr build_module(const std::string& name, const std::vector<Value>& positional,
                           const std::vector<std::pair<std::string, Value>>& named, const Scope& scope);

}  // namespace lockstep::run
