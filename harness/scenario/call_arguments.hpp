// Checks of the arguments of a call: too many, given twice, missing, or unknown. They run before launch, and in a run
// for a function whose name is bound to a value.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

using ReportError = std::function<void(const Expr& at, std::string message)>;

void check_function_arguments(const Expr& call, const FunctionSpec& function, const ReportError& report);

// `name` is a built-in layer or model, or one of `models`.
void check_model_arguments(const Expr& call, const std::string& name, const std::vector<ModelDefinition>& models,
                           const ReportError& report);

// The model of that name that the file defines, or null.
const ModelDefinition* find_model_definition(const std::vector<ModelDefinition>& models, const std::string& name);

}  // namespace lockstep::scenario
