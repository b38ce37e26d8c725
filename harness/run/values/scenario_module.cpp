#include "harness/run/values/scenario_module.hpp"

#include <algorithm>
#include <unordered_map>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/nn/build.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

namespace {

const scenario::ModelDefinition* own_model(const std::string& name, const Frame& frame) {
  if (!frame.models) return nullptr;
  for (const scenario::ModelDefinition& model : *frame.models)
    if (model.name == name) return &model;
  return nullptr;
}

// The frame in which models of a file are evaluated: without bound names.
FramePtr frame_without_names(const Frame& frame) {
  auto result = std::make_shared<Frame>();
  result->session = frame.session;
  result->models = frame.models;
  result->routine = frame.routine;
  result->file = frame.file;
  return result;
}

Tensor as_parameter(const Value& value, const std::string& subject) {
  const Tensor& tensor = value.as_tensor(subject);
  // Detached: a parameter of another module or a view must not be registered itself.
  return is_leaf(tensor) ? tensor : detach(tensor);
}

}  // namespace

ScenarioModule::ScenarioModule(const scenario::ModelDefinition& description, FramePtr frame,
                               std::vector<std::pair<std::string, Value>> arguments)
    : Module(description.name), description_(description), frame_(std::move(frame)), arguments_(std::move(arguments)) {}

std::vector<std::string> ScenarioModule::methods() const {
  std::vector<std::string> names;
  for (const scenario::MethodDefinition& method : description_.methods) names.push_back(method.name);
  return names;
}

nn::ModulePtr ScenarioModule::clone_shell() const {
  return std::make_shared<ScenarioModule>(description_, frame_, arguments_);
}

bool ScenarioModule::find_own(const std::string& name, Value& found) {
  for (const auto& [own, value] : arguments_)
    if (own == name) {
      found = value;
      return true;
    }
  return find_member(shared_from_this(), name, found);
}

void ScenarioModule::build(const nn::BuildOptions& options) {
  Scope scope{frame_, nullptr, this, &options};
  for (const scenario::NamedExpr& entry : description_.children)
    add_child(entry.name, evaluate(*entry.value, scope).as_module(str("child `", entry.name, "`")));
  for (const scenario::NamedExpr& entry : description_.parameters) {
    add_parameter(entry.name, as_parameter(evaluate(*entry.value, scope), str("parameter `", entry.name, "`")));
    nn::ParameterSlot& slot = parameters.back();
    slot.num_draws = slot.tensor.defined() && !slot.tensor.is_meta() ? 1 : 0;
  }
  for (const scenario::NamedExpr& entry : description_.buffers)
    add_buffer(entry.name, as_parameter(evaluate(*entry.value, scope), str("buffer `", entry.name, "`")));
  for (const scenario::NamedExpr& entry : description_.non_persistent_buffers)
    add_buffer(entry.name, as_parameter(evaluate(*entry.value, scope), str("buffer `", entry.name, "`")), false);
}

void ScenarioModule::draw_parameters() {
  const NoGrad no_grad;
  // Evaluates the expressions again, with build options as at construction, and copies into the existing tensors.
  const auto draw = [this](const scenario::NamedExpr& entry, const Tensor& into) {
    nn::BuildOptions options{into.dtype(), into.device()};
    const Scope scope{frame_, nullptr, this, &options};
    const Tensor drawn = evaluate(*entry.value, scope).as_tensor(entry.name);
    if (!into.is_meta()) ops::copy_(into, drawn);
  };
  for (const scenario::NamedExpr& entry : description_.parameters)
    if (const nn::ParameterSlot* slot = parameter_slot(entry.name); slot && slot->tensor.defined())
      draw(entry, slot->tensor);
  for (const std::vector<scenario::NamedExpr>* list : {&description_.buffers, &description_.non_persistent_buffers})
    for (const scenario::NamedExpr& entry : *list)
      if (const nn::BufferSlot* slot = buffer_slot(entry.name); slot && slot->tensor.defined())
        draw(entry, slot->tensor);
}

Locals ScenarioModule::bind_inputs(const scenario::MethodDefinition& method, const nn::Inputs& inputs,
                                   const Scope& scope) const {
  const std::size_t num_inputs = method.inputs.size(), num_names = num_inputs + method.options.size();
  Locals locals;
  for (const std::string& input : method.inputs) locals.names.emplace_back(input, Value());
  for (const auto& [option, default_value] : method.options) locals.names.emplace_back(option, Value());
  std::vector<bool> given(num_names, false);
  if (inputs.positional.size() > num_names)
    throw Error(str(type(), ".", method.name, " takes at most ", num_names, " inputs, not ", inputs.positional.size()));
  for (std::size_t i = 0; i < inputs.positional.size(); ++i) {
    locals.names[i].second = from_nn(inputs.positional[i]);
    given[i] = true;
  }
  for (const auto& [key, value] : inputs.named) {
    const auto at = std::find_if(locals.names.begin(), locals.names.end(),
                                 [&key = key](const auto& entry) { return entry.first == key; });
    if (at == locals.names.end()) throw Error(str(type(), ".", method.name, " has no input `", key, "`"));
    const auto index = static_cast<std::size_t>(at - locals.names.begin());
    if (index < inputs.positional.size()) throw Error(str(type(), ".", method.name, " got `", key, "` twice"));
    at->second = from_nn(value);
    given[index] = true;
  }
  for (std::size_t i = 0; i < num_inputs; ++i)
    if (!given[i]) throw Error(str(type(), ".", method.name, " needs an input `", method.inputs[i], "`"));
  for (std::size_t i = num_inputs; i < num_names; ++i)
    if (!given[i]) locals.names[i].second = evaluate(*method.options[i - num_inputs].second, scope);
  return locals;
}

nn::Structure ScenarioModule::run(std::string_view name, const nn::Inputs& inputs) {
  const scenario::MethodDefinition* method = description_.method(name);
  if (!method) throw Error(str(type(), " has no method `", name, "`"));
  const Scope outside{frame_, nullptr, this, nullptr};
  Locals locals = bind_inputs(*method, inputs, outside);
  const Scope scope = outside.with(&locals);
  Value result;
  for (const scenario::NamedExpr& entry : method->body) {
    result = evaluate(*entry.value, scope);
    if (entry.name == "return") continue;
    const auto bound = std::find_if(locals.names.begin(), locals.names.end(),
                                    [&entry](const auto& local) { return local.first == entry.name; });
    if (bound == locals.names.end())
      locals.names.emplace_back(entry.name, result);
    else
      bound->second = result;
  }
  return to_nn(result);
}

bool is_buildable(const std::string& name, const Scope& scope) {
  return own_model(name, *scope.frame) || nn::has_builder(name);
}

namespace {

using Heights = std::unordered_map<const nn::Module*, int>;

// The number of nested modules, this one included. A shared module is visited once.
int height_of(const nn::Module& module, Heights& known) {
  if (const auto found = known.find(&module); found != known.end()) return found->second;
  int height = 1;
  for (const nn::ChildSlot& child : module.children)
    if (child.module) height = std::max(height, 1 + height_of(*child.module, known));
  known.emplace(&module, height);
  return height;
}

// Functions recurse over models, so their depth is limited.
nn::ModulePtr check_depth(nn::ModulePtr module) {
  Heights known;
  const int height = height_of(*module, known);
  if (height > scenario::limits::value_depth)
    throw Error(
        str(module->type(), " nests ", height, " modules: at most ", scenario::limits::value_depth, " are allowed"));
  return module;
}

using NamedValues = std::vector<std::pair<std::string, Value>>;

// The arguments of a model in the order of its description, with defaults evaluated in `frame`.
NamedValues bind_arguments(const scenario::ModelDefinition& model, const std::vector<Value>& positional,
                           const NamedValues& named, const FramePtr& frame) {
  NamedValues arguments;
  if (positional.size() > model.arguments.size())
    throw Error(str(model.name, " takes ", model.arguments.size(), " arguments, not ", positional.size()));
  for (std::size_t i = 0; i < model.arguments.size(); ++i) {
    const scenario::ArgumentDefinition& argument = model.arguments[i];
    const auto given =
        std::find_if(named.begin(), named.end(), [&](const auto& entry) { return entry.first == argument.name; });
    if (i < positional.size() && given != named.end()) throw Error(str(model.name, " got `", argument.name, "` twice"));
    if (i < positional.size())
      arguments.emplace_back(argument.name, positional[i]);
    else if (given != named.end())
      arguments.emplace_back(argument.name, given->second);
    else if (argument.default_value)
      arguments.emplace_back(argument.name, evaluate(*argument.default_value, Scope{frame}));
    else
      throw Error(str(model.name, " needs `", argument.name, "`"));
  }
  for (const auto& [key, value] : named)
    if (std::none_of(model.arguments.begin(), model.arguments.end(),
                     [&key = key](const scenario::ArgumentDefinition& argument) { return argument.name == key; }))
      throw Error(str(model.name, " has no argument `", key, "`"));
  return arguments;
}

// A layer or a model of the engine. Modules among the positional arguments become its children.
nn::ModulePtr build_built_in(const std::string& name, const std::vector<Value>& positional, const NamedValues& named,
                             const nn::BuildOptions& options) {
  nn::Inputs inputs;
  std::vector<nn::ModulePtr> modules;
  for (const Value& value : positional) {
    if (const nn::ModulePtr* module = value.get_if<nn::ModulePtr>())
      modules.push_back(*module);
    else if (value.is(Value::Kind::list) && !value.as_list("modules").empty() &&
             value.as_list("modules").front().is(Value::Kind::module))
      for (const Value& item : value.as_list("modules"))
        modules.push_back(item.as_module("an item of a list of modules"));
    else
      inputs.positional.push_back(to_nn(value));
  }
  for (const auto& [key, value] : named) inputs.named.emplace_back(key, to_nn(value));
  return nn::build(name, inputs, options, modules);
}

}  // namespace

nn::ModulePtr build_module(const std::string& name, const std::vector<Value>& positional, const NamedValues& named,
                           const Scope& scope) {
  const nn::BuildOptions& options = *scope.build_options;
  const scenario::ModelDefinition* model = own_model(name, *scope.frame);
  if (!model) return check_depth(build_built_in(name, positional, named, options));
  FramePtr frame = frame_without_names(*scope.frame);
  NamedValues arguments = bind_arguments(*model, positional, named, frame);
  auto module = std::make_shared<ScenarioModule>(*model, std::move(frame), std::move(arguments));
  module->build(options);
  return check_depth(module);
}

}  // namespace lockstep::run
