// Models described in a scenario file as modules of the engine: their children, parameters and buffers are built from
// expressions, and their methods are expressions evaluated at each call. Also building any model by name.
//
//   Scope building{frame};  building.building = &options;
//   nn::ModulePtr m = build_module("MultiForward", {}, {}, building);
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/run/values/scope.hpp"

namespace lockstep::run {

class ScenarioModule final : public nn::Module {
 public:
  // `frame` holds no names, only what every own model of the file sees.
  ScenarioModule(const scenario::OwnModel& description, FramePtr frame,
                 std::vector<std::pair<std::string, Value>> arguments);

  std::vector<std::string> methods() const override;
  nn::ModulePtr clone_shell() const override;

  // An own name: argument, child, parameter, buffer or method.
  bool find_own(const std::string& name, Value& found);
  // Builds children, then parameters, then buffers, drawing in this order.
  void build(const nn::BuildOptions& options);

 protected:
  void draw_parameters() override;
  nn::Value run(std::string_view name, const nn::Inputs& inputs) override;

 private:
  // The inputs and options of a call, with defaults evaluated in `scope`.
  Locals bind_inputs(const scenario::OwnMethod& method, const nn::Inputs& inputs, const Scope& scope) const;

  const scenario::OwnModel& description_;  // of the scenario, which outlives the case
  FramePtr frame_;
  std::vector<std::pair<std::string, Value>> arguments_;
};

// Whether a call of `name` builds a module: an own model of the file, a layer or a built-in model.
bool is_buildable(const std::string& name, const Scope& scope);
nn::ModulePtr build_module(const std::string& name, const std::vector<Value>& positional,
                           const std::vector<std::pair<std::string, Value>>& named, const Scope& scope);

}  // namespace lockstep::run
