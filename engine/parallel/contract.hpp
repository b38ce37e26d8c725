// The contract of composable APIs: each API applies to a module at most once, registers itself with the module, and
// keeps the name and the order of every parameter.
//
//   const Application application(module, "replicate");   // throws if it was applied before
//   ... add hooks ...
//   application.complete(settings, names, state);          // checks names and order, then registers the API
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
inline constexpr std::string_view flat_shard_name = "flat_shard";

bool is_applied(const nn::Module& module, std::string_view api);
bool is_sharded(const nn::Module& module);  // by fully_shard or flat_shard

// A module that contains another one, and whose parameters of that module an API manages.
struct Managing {
  std::string api;
  nn::ModulePtr module;
  std::string path;  // of the contained module below it; "" for the module itself
};
// The modules to which the API has been applied on this rank and which contain `module`, the module itself included: of
// these, the ones that manage a parameter of it. All of them if it has no parameters.
std::vector<Managing> managing_modules(const nn::ModulePtr& module, std::string_view api);

class Application {
 public:
  // Throws Error when `api` was applied to the module already.
  Application(nn::ModulePtr module, std::string_view api);
  enum class Names { kept, replaced };  // of parameters, by the API
  // Registers the API. Throws InternalError when the name or the order of a parameter has changed, unless the API
  // replaces them.
  void complete(std::map<std::string, nn::Structure> settings, std::vector<std::string> parameter_names, std::any state,
                Names names = Names::kept) const;

 private:
  nn::ModulePtr module_;
  std::string api_;
  std::vector<std::string> names_before_;
};

// The paths below the module of those modules and parameters, for the settings of an API that leaves them out.
nn::Structure paths_below(const nn::ModulePtr& module, const std::vector<nn::ModulePtr>& modules,
                          const std::vector<Tensor>& parameters = {});

// A module and its submodules for messages, one per line: "Net(\n  fc1: Linear\n)".
std::string outline(const nn::Module& module);

}  // namespace lockstep::parallel
