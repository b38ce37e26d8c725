// Models whose forward is one short function over their children, such as the models of the documents.
//
//   auto net = std::make_shared<Composed>("Net", [](Composed& m, const Inputs& in) { return m.child("fc1")->call(in);
//   });
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/arguments.hpp"
#include "engine/nn/build.hpp"

namespace lockstep::nn {

class Composed : public Module {
 public:
  using Forward = std::function<Structure(Composed&, const Inputs&)>;
  using Reset = std::function<void(Composed&)>;
  explicit Composed(std::string type, Forward forward, Reset reset = {})
      : Module(std::move(type)), forward_(std::move(forward)), reset_(std::move(reset)) {}
  // Adds a method besides "forward".
  void add_method(std::string name, Forward method) { others_.emplace_back(std::move(name), std::move(method)); }
  std::vector<std::string> methods() const override;
  ModulePtr clone_shell() const override;
  // Calls the child with one tensor and returns its output, a tensor.
  Tensor call_child(std::string_view name, const Tensor& x) { return child(name)->call(x).tensor(); }

 protected:
  void draw_parameters() override {
    if (reset_) reset_(*this);
  }
  Structure run(std::string_view method, const Inputs& inputs) override;

 private:
  Forward forward_;
  Reset reset_;
  std::vector<std::pair<std::string, Forward>> others_;
};

// An entry of the table of build().
struct Builder {
  BuilderInfo info;
  std::function<ModulePtr(const Arguments&, const BuildOptions&, const std::vector<ModulePtr>&)> make;
};
std::vector<Builder> layer_builders();
std::vector<Builder> model_builders();
std::vector<Builder> transformer_builders();

}  // namespace lockstep::nn
