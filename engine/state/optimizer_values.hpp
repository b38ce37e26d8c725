// The plain values of optimizers and gradient scalers as JSON texts, and back.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/optim/grad_scaler.hpp"
#include "engine/optim/optimizer.hpp"

namespace lockstep::state {

// {"parameters": ["0.weight"], "lr": 0.1, ...}
std::string text_of_group(const std::vector<std::string>& parameters, const optim::Options& options);
// Throws Error, naming `key`, for any other text.
std::pair<std::vector<std::string>, optim::Options> group_from_text(const std::string& json, const std::string& key);

// "null" for a scaler that is not enabled.
std::string text_of_scaler(const std::optional<optim::GradScaler::State>& state);
std::optional<optim::GradScaler::State> scaler_from_text(const std::string& json, const std::string& key);

std::int64_t integer_from_text(const std::string& json, const std::string& key);
std::string word_from_text(const std::string& json, const std::string& key);

}  // namespace lockstep::state
