#include "engine/parallel/tensor_parallel_calls.hpp"

#include <memory>
#include <utility>

#include "engine/autograd/ops_sharded.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::parallel {

using layout::Placement;
using nn::Inputs;
using nn::Structure;

namespace {

// Seeded defects.
Placement along_other_dim(Placement placement, const Tensor& x) {
  if (placement.is_shard() && placement.dim < 2 && x.num_dims() > 2) placement.dim = 1 - placement.dim;
  return placement;
}
Tensor summands_as_sum(const Tensor& y) {
  return y.is_sharded() ? ops::from_local(ops::to_local(y), layout::gradient_layout(y.layout())) : y;
}

}  // namespace

StyledCall::StyledCall(nn::Module& module, const DeviceMesh& mesh, Style style, const std::string& owner)
    : mesh_(mesh),
      style_(std::move(style)),
      owner_(owner),
      attribution_(std::make_shared<const comm::Attribution>(comm::Attribution{comm::Family::tensor_parallel, owner})),
      is_linear_(module.type() == "Linear") {
  // A Linear that a scenario defines may have another weight, or none.
  const nn::ParameterSlot* weight = is_linear_ ? module.parameter_slot("weight") : nullptr;
  const bool converts_inputs = !std::holds_alternative<PrepareOutput>(style_);
  if (converts_inputs && weight && weight->tensor.defined() && global_sizes(weight->tensor).size() == 2)
    num_input_features_ = global_sizes(weight->tensor)[1];
}

Structure StyledCall::operator()(const Inputs& inputs, const std::function<Structure(const Inputs&)>& compute) const {
  const comm::AttributionScope scope(attribution_);
  Inputs changed = inputs;
  convert(changed);
  return converted(compute(changed));
}

void StyledCall::convert(Inputs& inputs) const {
  if (const auto* colwise = std::get_if<Colwise>(&style_)) {
    convert_input(inputs, {colwise->input, layout::replicate()});
  } else if (const auto* rowwise = std::get_if<Rowwise>(&style_)) {
    convert_input(inputs, {rowwise->input, is_linear_ ? layout::shard(-1) : layout::replicate()});
  } else if (const auto* sequence = std::get_if<SequenceParallel>(&style_)) {
    convert_input(inputs, {layout::shard(sequence->dim), layout::shard(sequence->dim)}, "dim");
  } else if (const auto* prepared = std::get_if<PrepareInput>(&style_)) {
    prepare(inputs, *prepared);
  }
}

Structure StyledCall::converted(const Structure& outputs) const {
  if (const auto* colwise = std::get_if<Colwise>(&style_))
    return convert_output(outputs, colwise->output, colwise->keep_sharded);
  if (const auto* rowwise = std::get_if<Rowwise>(&style_))
    return convert_output(outputs, rowwise->output, rowwise->keep_sharded);
  if (const auto* sequence = std::get_if<SequenceParallel>(&style_))
    return sequence->keep_sharded ? outputs : map_tensors(outputs, [](const Tensor& y) { return ops::to_local(y); });
  if (const auto* prepared = std::get_if<PrepareOutput>(&style_)) return prepare(outputs, *prepared);
  return outputs;
}

// ---- conversions ----
Placement StyledCall::of_dims(Placement placement, const Tensor& x, const char* argument) const {
  const int num_dims = global_sizes(x).size();
  if (!placement.is_shard() || (placement.dim >= 0 && placement.dim < num_dims)) return placement;
  if (placement.dim >= 0 || placement.dim < -num_dims)
    throw Error(str("tensor_parallel: `", argument, "` of the style ", name_of(style_), " of ", owner_, " is ",
                    to_text(placement), ", but ", describe_sharded(x), " has ", num_dims, " dims"),
                num_dims == 0 ? "give a tensor with dims" : str("give a dim from ", -num_dims, " to ", num_dims - 1));
  placement.dim += num_dims;
  return placement;
}

Tensor StyledCall::to_sharded(const Tensor& x, const Placement& given, const char* argument) const {
  if (x.is_sharded()) {
    if (!(x.layout()->mesh == mesh_.shape()))
      throw Error(str("tensor_parallel: ", owner_, " is distributed over ", mesh_.shape().text(), ", but gets ",
                      describe_sharded(x)),
                  "give a tensor on the same mesh, or a plain one");
    return x;
  }
  Placement placement = of_dims(given, x, argument);
  if (defect_armed(Defect::tensor_input_wrong_dim)) [[unlikely]]
    placement = along_other_dim(placement, x);
  // The features of a shard need not be equally many on all ranks; their sum is known.
  if (num_input_features_ > 0 && placement.is_shard(x.num_dims() - 1)) {
    Dims sizes = x.sizes();
    sizes[x.num_dims() - 1] = num_input_features_;
    return ops::from_local(x, mesh_, {placement}, &sizes);
  }
  return ops::from_local(x, mesh_, {placement});
}

Tensor StyledCall::convert(const Tensor& x, const Conversion& conversion, const Arguments& arguments) const {
  const Tensor sharded = to_sharded(x, conversion.given, arguments.given);
  if (!conversion.wanted) return sharded;
  return ops::redistribute(sharded, Placements{of_dims(*conversion.wanted, sharded, arguments.wanted)});
}

void StyledCall::convert_input(Inputs& inputs, const Conversion& conversion, const char* argument) const {
  if (inputs.positional.empty() || !inputs.positional[0].is_tensor())
    throw Error(str("tensor_parallel: the first input of ", owner_, " is ",
                    inputs.positional.empty() ? std::string("missing") : inputs.positional[0].kind()),
                "give a tensor as first positional input");
  inputs.positional[0] = convert(inputs.positional[0].tensor(), conversion, {argument, argument});
}

Structure StyledCall::convert_output(const Structure& outputs, const Placement& wanted, bool keep_sharded) const {
  Tensor y = outputs.tensor();
  Placement placement = of_dims(wanted, y, "output");
  if (defect_armed(Defect::tensor_output_left_partial)) [[unlikely]]
    y = summands_as_sum(y);
  if (defect_armed(Defect::tensor_output_wrong_dim)) [[unlikely]]
    placement = along_other_dim(placement, y);
  const Tensor made = ops::redistribute(y, Placements{placement});
  return keep_sharded ? made : ops::to_local(made);
}

// ---- prepare_input, prepare_output ----
Structure StyledCall::convert_item(const Structure& item, const std::optional<Conversion>& conversion,
                                   bool keep_sharded, const char* role) const {
  if (!conversion) return item;
  if (!item.is_tensor())
    throw Error(str("tensor_parallel: ", role, " of ", owner_, " that has a placement is ", item.kind()),
                "give a tensor, or no placement");
  const Tensor made = convert(item.tensor(), *conversion, {"given", "wanted"});
  return keep_sharded ? made : ops::to_local(made);
}

void StyledCall::prepare(Inputs& inputs, const PrepareInput& style) const {
  if (!style.positional.empty()) {
    if (inputs.positional.size() != style.positional.size())
      throw Error(
          str("tensor_parallel: module inputs and input_layouts should have same length! ", owner_, " gets ",
              inputs.positional.size(), " positional inputs, its style has ", style.positional.size(), " placements"),
          "state one placement per positional input, `none` for one that stays as it is");
    for (std::size_t i = 0; i < style.positional.size(); ++i)
      inputs.positional[i] = convert_item(inputs.positional[i], style.positional[i], style.keep_sharded, "an input");
  }
  for (auto& [name, value] : inputs.named)
    for (const auto& [wanted, conversion] : style.named)
      if (wanted == name) value = convert_item(value, conversion, style.keep_sharded, "an input");
}

Structure StyledCall::prepare(const Structure& outputs, const PrepareOutput& style) const {
  const bool is_list = outputs.is_list();
  const std::size_t num_outputs = is_list ? outputs.items().size() : 1;
  if (num_outputs != style.outputs.size())
    throw Error(str("tensor_parallel: module outputs and output_layouts should have same length! ", owner_, " gives ",
                    num_outputs, " outputs, its style has ", style.outputs.size(), " placements"),
                "state one placement per output, `none` for one that stays as it is");
  if (!is_list) return convert_item(outputs, style.outputs[0], style.keep_sharded, "an output");
  Structure::List items;
  for (std::size_t i = 0; i < num_outputs; ++i)
    items.push_back(convert_item(outputs.items()[i], style.outputs[i], style.keep_sharded, "an output"));
  return Structure::list(std::move(items));
}

}  // namespace lockstep::parallel
