#include "engine/parallel/contract.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::parallel {

namespace {

std::vector<std::string> names_of(const nn::ModulePtr& module) {
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : nn::named_parameters(module, false)) names.push_back(parameter.path);
  return names;
}

void append_outline(std::string& text, const nn::Module& module, const std::string& indent) {
  text += module.type();
  if (module.children.empty()) return;
  text += "(";
  for (const nn::ChildSlot& child : module.children) {
    text += str("\n", indent, "  ", child.name, ": ");
    append_outline(text, *child.module, indent + "  ");
  }
  text += str("\n", indent, ")");
}

// The modules of this rank to which an API has been applied. A module does not know which modules contain it.
struct AppliedModules {
  explicit AppliedModules(RankContext&) {}
  std::vector<std::weak_ptr<nn::Module>> modules;
};

void note_applied(const nn::ModulePtr& module) {
  auto& modules = RankContext::current().service<AppliedModules>().modules;
  std::erase_if(modules, [](const std::weak_ptr<nn::Module>& one) { return one.expired(); });
  modules.push_back(module);
}

// Whether one of the names is that of a parameter of the module at `path`. The names of a group of several modules
// begin with the number of the module.
bool names_one_of(const std::vector<std::string>& names, const nn::ModulePtr& module, const std::string& path) {
  for (const nn::NamedParameter& parameter : nn::named_parameters(module, false)) {
    const std::string name = path.empty() ? parameter.path : path + "." + parameter.path;
    const bool is_named = std::any_of(names.begin(), names.end(),
                                      [&](const std::string& one) { return one == name || one.ends_with("." + name); });
    if (is_named) return true;
  }
  return false;
}

}  // namespace

bool is_sharded(const nn::Module& module) {
  return is_applied(module, fully_shard_name) || is_applied(module, flat_shard_name);
}

std::vector<Managing> managing_modules(const nn::ModulePtr& module, std::string_view api) {
  std::vector<Managing> managing;
  const bool has_parameters = !nn::named_parameters(module).empty();
  for (const std::weak_ptr<nn::Module>& weak : RankContext::current().service<AppliedModules>().modules) {
    const nn::ModulePtr root = weak.lock();
    if (!root || !is_applied(*root, api)) continue;
    for (const nn::NamedModule& entry : nn::named_modules(root)) {
      if (entry.module != module) continue;
      if (!has_parameters || names_one_of(root->applied.find(api)->second.parameter_names, module, entry.path))
        managing.push_back({std::string(api), root, entry.path});
      break;
    }
  }
  return managing;
}

bool is_applied(const nn::Module& module, std::string_view api) {
  return module.applied.find(api) != module.applied.end();
}

nn::Structure paths_below(const nn::ModulePtr& module, const std::vector<nn::ModulePtr>& modules,
                          const std::vector<Tensor>& parameters) {
  std::vector<nn::Structure> paths;
  for (const nn::NamedModule& entry : nn::named_modules(module))
    if (std::find(modules.begin(), modules.end(), entry.module) != modules.end()) paths.emplace_back(entry.path);
  for (const nn::NamedParameter& entry : nn::named_parameters(module, false))
    if (std::any_of(parameters.begin(), parameters.end(),
                    [&](const Tensor& one) { return one.same_as(entry.tensor()); }))
      paths.emplace_back(entry.path);
  return nn::Structure::list(std::move(paths));
}

std::string outline(const nn::Module& module) {
  std::string text;
  append_outline(text, module, "");
  return text;
}

Application::Application(nn::ModulePtr module, std::string_view api) : module_(std::move(module)), api_(api) {
  if (is_applied(*module_, api))
    throw Error(str("Each distinct composable distributed API can only be applied to a module once. ", api,
                    " has already been applied to the following module: ", outline(*module_)),
                "apply it once, or to a copy");
  names_before_ = names_of(module_);
}

void Application::complete(std::map<std::string, nn::Structure> settings, std::vector<std::string> parameter_names,
                           std::any state, Names names) const {
  LOCKSTEP_CHECK(names == Names::replaced || names_of(module_) == names_before_,
                 "Composable distributed API implementations cannot modify FQNs: ", api_,
                 " changed names or order of the parameters of ", module_->type());
  module_->applied[api_] = {std::move(settings), std::move(parameter_names), std::move(state)};
  note_applied(module_);
}

}  // namespace lockstep::parallel
