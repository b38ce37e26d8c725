// tensor_parallel.
#include "engine/parallel/tensor_parallel.hpp"

#include "harness/run/verbs/parallel_arguments.hpp"

namespace lockstep::run::verbs {

namespace {

template <class LinearStyle>
parallel::Style linear_style(const StyleArgument& argument) {
  LinearStyle style;
  style.input = argument.input.value_or(style.input);
  style.output = argument.output.value_or(style.output);
  style.keep_sharded = argument.keep_sharded.value_or(style.keep_sharded);
  return style;
}

parallel::Conversion conversion_of(const ConversionArgument& argument) { return {argument.given, argument.wanted}; }

std::vector<std::optional<parallel::Conversion>> conversions_of(const StyleArgument& argument) {
  std::vector<std::optional<parallel::Conversion>> conversions;
  for (const auto& one : argument.conversions)
    conversions.push_back(one ? std::optional(conversion_of(*one)) : std::nullopt);
  return conversions;
}

parallel::Style style_of(const StyleArgument& argument) {
  switch (argument.kind) {
    case StyleKind::colwise:
      return linear_style<parallel::Colwise>(argument);
    case StyleKind::rowwise:
      return linear_style<parallel::Rowwise>(argument);
    case StyleKind::sequence_parallel: {
      parallel::SequenceParallel style{.dim = argument.dim};
      style.keep_sharded = argument.keep_sharded.value_or(style.keep_sharded);
      return style;
    }
    case StyleKind::prepare_input: {
      parallel::PrepareInput style{.positional = conversions_of(argument), .named = {}};
      for (const auto& [name, conversion] : argument.named) style.named.emplace_back(name, conversion_of(conversion));
      style.keep_sharded = argument.keep_sharded.value_or(style.keep_sharded);
      return style;
    }
    case StyleKind::prepare_output: {
      parallel::PrepareOutput style{.outputs = conversions_of(argument)};
      style.keep_sharded = argument.keep_sharded.value_or(style.keep_sharded);
      return style;
    }
  }
  throw InternalError("an unknown style");
}

}  // namespace

Value tensor_parallel(StepCall& call) {
  const TensorParallelArguments arguments = tensor_parallel_arguments(call);
  std::vector<parallel::PlannedModule> plan;
  for (const StyledModule& one : arguments.modules) plan.push_back({one.path, one.module, style_of(one.style)});
  parallel::tensor_parallel(arguments.model.module, *arguments.mesh, plan, arguments.model.path);
  return Value();
}

}  // namespace lockstep::run::verbs
