// The call of a module to which tensor_parallel has been applied: its inputs become sharded tensors, the module
// computes with them, its outputs get the placements that its style asks for.
//
// All collectives of a call, those of its backward included, carry the module as owner.
#pragma once

#include <functional>

#include "engine/comm/attribution.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/tensor_parallel_styles.hpp"

namespace lockstep::parallel {

class StyledCall {
 public:
  // `owner`: "model.module", for log and messages. The mesh has one axis; the parameters of the module are distributed.
  StyledCall(nn::Module& module, const DeviceMesh& mesh, Style style, const std::string& owner);
  // Throws Error for inputs that the style does not fit, with the name of the module.
  nn::Structure operator()(const nn::Inputs& inputs,
                           const std::function<nn::Structure(const nn::Inputs&)>& compute) const;

 private:
  void convert(nn::Inputs& inputs) const;
  nn::Structure converted(const nn::Structure& outputs) const;
  // The placement with a dim from 0. Throws Error, with the argument of the style, for a dim that `x` does not have.
  layout::Placement of_dims(layout::Placement placement, const Tensor& x, const char* argument) const;
  struct Arguments {
    const char *given, *wanted;  // the arguments of the style that state the two placements
  };
  Tensor to_sharded(const Tensor& x, const layout::Placement& given, const char* argument) const;
  Tensor convert(const Tensor& x, const Conversion& conversion, const Arguments& arguments) const;
  void convert_input(nn::Inputs& inputs, const Conversion& conversion, const char* argument = "input") const;
  nn::Structure convert_output(const nn::Structure& outputs, const layout::Placement& wanted, bool keep_sharded) const;
  void prepare(nn::Inputs& inputs, const PrepareInput& style) const;
  nn::Structure prepare(const nn::Structure& outputs, const PrepareOutput& style) const;
  nn::Structure convert_item(const nn::Structure& item, const std::optional<Conversion>& conversion, bool keep_sharded,
                             const char* role) const;

  DeviceMesh mesh_;
  Style style_;
  std::string owner_;
  comm::AttributionPtr attribution_;
  bool is_linear_ = false;
  std::int64_t num_input_features_ = 0;  // of a Linear whose inputs the style converts
};

}  // namespace lockstep::parallel
