#include "engine/parallel/contract.hpp"

#include <utility>

#include "engine/core/error.hpp"

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

}  // namespace

bool is_sharded(const nn::Module& module) {
  return is_applied(module, fully_shard_name) || is_applied(module, flat_shard_name);
}

bool is_applied(const nn::Module& module, std::string_view api) {
  return module.applied.find(api) != module.applied.end();
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
}

}  // namespace lockstep::parallel
