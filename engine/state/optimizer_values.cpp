#include "engine/state/optimizer_values.hpp"

#include <cstdint>
#include <limits>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

// Calls read(json) and turns a failure of it into an Error that names the key.
template <class F>
auto reading(const std::string& json, const std::string& key, const char* wanted, F&& read) {
  try {
    return read(Json::parse(json));
  } catch (const Json::exception& error) {
    throw Error(str("`", key, "` is no ", wanted, ": ", error.what()), "load the checkpoint of the same state");
  }
}

// Json::get would convert fractions and numbers of more than 63 bits.
std::int64_t whole_number(const Json& value, const std::string& key) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > most))
    throw Error(str("`", key, "` has ", value.dump(), " in the place of an integer"),
                "load the checkpoint of the same state");
  return value.get<std::int64_t>();
}

}  // namespace

std::string text_of_group(const std::vector<std::string>& parameters, const optim::Options& options) {
  return Json{{"parameters", parameters},     {"lr", options.lr},
              {"momentum", options.momentum}, {"betas", {options.beta1, options.beta2}},
              {"eps", options.eps},           {"weight_decay", options.weight_decay},
              {"fused", options.fused}}
      .dump();
}

std::pair<std::vector<std::string>, optim::Options> group_from_text(const std::string& json, const std::string& key) {
  return reading(json, key, "group of an optimizer", [](const Json& group) {
    optim::Options options;
    options.lr = group.at("lr").get<double>();
    options.momentum = group.at("momentum").get<double>();
    options.beta1 = group.at("betas").at(0).get<double>();
    options.beta2 = group.at("betas").at(1).get<double>();
    options.eps = group.at("eps").get<double>();
    options.weight_decay = group.at("weight_decay").get<double>();
    options.fused = group.at("fused").get<bool>();
    return std::pair(group.at("parameters").get<std::vector<std::string>>(), options);
  });
}

std::string text_of_scaler(const std::optional<optim::GradScaler::State>& state) {
  if (!state) return "null";
  return Json{{"scale", state->scale},
              {"growth_factor", state->growth_factor},
              {"backoff_factor", state->backoff_factor},
              {"growth_interval", state->growth_interval},
              {"growth_tracker", state->growth_tracker}}
      .dump();
}

std::optional<optim::GradScaler::State> scaler_from_text(const std::string& json, const std::string& key) {
  return reading(json, key, "state of a scaler", [&key](const Json& state) -> std::optional<optim::GradScaler::State> {
    if (state.is_null()) return std::nullopt;
    return optim::GradScaler::State{state.at("scale").get<double>(), state.at("growth_factor").get<double>(),
                                    state.at("backoff_factor").get<double>(),
                                    whole_number(state.at("growth_interval"), key),
                                    whole_number(state.at("growth_tracker"), key)};
  });
}

std::int64_t integer_from_text(const std::string& json, const std::string& key) {
  return reading(json, key, "integer", [&key](const Json& value) { return whole_number(value, key); });
}

std::string word_from_text(const std::string& json, const std::string& key) {
  return reading(json, key, "text", [](const Json& value) { return value.get<std::string>(); });
}

}  // namespace lockstep::state
