// The contract of composable APIs: each applies to a module at most once, says so in the module's registry, and leaves
// every parameter's name and order as they were.
//
//   const Application application(module, "replicate");   // throws when it was applied before
//   ... add hooks ...
//   application.complete(settings, names, state);          // checks names and order, then registers
#pragma once

#include <any>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.hpp"

namespace lockstep::parallel {

inline constexpr std::string_view replicate_name = "replicate";
inline constexpr std::string_view fully_shard_name = "fully_shard";

bool is_applied(const nn::Module& module, std::string_view api);

class Application {
 public:
  // Throws Error when `api` was applied to the module already.
  Application(nn::ModulePtr module, std::string_view api);
  // Registers the API; throws InternalError when it changed a parameter's name or place.
  void complete(std::map<std::string, nn::Value> settings, std::vector<std::string> parameter_names,
                std::any state) const;

 private:
  nn::ModulePtr module_;
  std::string api_;
  std::vector<std::string> names_before_;
};

// A module and its parts, one a line, as messages show them: "Net(\n  fc1: Linear\n)".
std::string outline(const nn::Module& module);

}  // namespace lockstep::parallel
