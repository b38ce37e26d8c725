#include "harness/scenario/model_cycles.hpp"

#include <set>
#include <string>

#include "engine/core/text.hpp"
#include "harness/scenario/call_arguments.hpp"

namespace lockstep::scenario {

namespace {

// Adds the names that the expressions call.
void add_called(const std::vector<NamedExpr>& list, std::vector<std::string>& names) {
  for (const NamedExpr& entry : list) {
    for_each_node(*entry.value, [&](const Expr& node) {
      if (node.kind == ExprKind::call && node.children[0]->kind == ExprKind::name)
        names.push_back(node.children[0]->name);
    });
  }
}

// Whether a chain of calls leads from `start` back to `start`. body_of(name) is the list of expressions of a model or
// method, or null.
template <class BodyOf>
bool leads_back(const std::string& start, const BodyOf& body_of) {
  std::vector<std::string> pending;
  add_called(*body_of(start), pending);
  std::set<std::string> seen;
  while (!pending.empty()) {
    const std::string name = pending.back();
    pending.pop_back();
    if (name == start) return true;
    const std::vector<NamedExpr>* body = body_of(name);
    if (body != nullptr && seen.insert(name).second) add_called(*body, pending);
  }
  return false;
}

}  // namespace

void check_cycles(const std::vector<ModelDefinition>& models, Diagnostics& diagnostics) {
  const auto children_of = [&](const std::string& name) {
    const ModelDefinition* model = find_model_definition(models, name);
    return model == nullptr ? nullptr : &model->children;
  };
  for (const ModelDefinition& model : models) {
    const auto body_of = [&](const std::string& name) {
      const MethodDefinition* method = model.method(name);
      return method == nullptr ? nullptr : &method->body;
    };
    for (const MethodDefinition& method : model.methods) {
      if (leads_back(method.name, body_of))
        diagnostics.error(method.place, str("the method `", method.name, "` of `", model.name, "` calls itself"));
    }
    if (leads_back(model.name, children_of))
      diagnostics.error(model.place, str("the model `", model.name, "` contains itself"));
  }
}

}  // namespace lockstep::scenario
