// Whether the arguments of a call fit what it calls: none too many, none twice, none missing, no unknown name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

using Complain = std::function<void(const Expr& at, std::string message)>;

void check_function_arguments(const Expr& call, const FunctionSpec& function, const Complain& complain);

// Of a layer or model, built in or one of `models`.
void check_model_arguments(const Expr& call, const std::string& name, const std::vector<OwnModel>& models,
                           const Complain& complain);

// The file's own model of that name, null when there is none.
const OwnModel* find_own_model(const std::vector<OwnModel>& models, const std::string& name);

}  // namespace lockstep::scenario
