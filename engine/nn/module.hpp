// The module tree: children, parameter slots, buffers, methods and hooks.
//
// A parameter lives in a slot of its module; a parallel API may put another tensor into the slot (a gathered view, a
// sharded tensor) while names and order stay. Calling a module runs its hooks around the method. Not copyable;
// clone_module copies deeply. One rank uses a module; it is no shared object.
//
//   auto net = std::make_shared<Sequential>(...);
//   Value y = net->call({x});
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/value.hpp"

namespace lockstep::nn {

class Module;
using ModulePtr = std::shared_ptr<Module>;

// Arguments of a call; hooks see and may replace them.
struct Inputs {
  std::vector<Value> positional;
  Value::Map named;
};

struct ParameterSlot {
  std::string name;  // local: "weight"
  Tensor tensor;     // what the module computes with; undefined when it goes without (bias = false)
  Tensor sharded;    // of a sharded parameter: what is trained, whatever lies in `tensor` at the moment; else undefined
  const Tensor& trained() const { return sharded.defined() ? sharded : tensor; }
  int num_draws = 0;  // how often its initial values were drawn or set; a copy starts with the count of its model
};
struct BufferSlot {
  std::string name;
  Tensor tensor;
  bool persistent = true;  // part of the state dict
};
struct ChildSlot {
  std::string name;
  ModulePtr module;
};

using HookHandle = std::int64_t;

class Module : public std::enable_shared_from_this<Module> {
 public:
  explicit Module(std::string type) : type_(std::move(type)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& type() const { return type_; }  // "Linear"
  bool training = true;

  // ---- structure, in registration order ----
  std::vector<ChildSlot> children;
  std::vector<ParameterSlot> parameters;
  std::vector<BufferSlot> buffers;
  ModulePtr child(std::string_view name) const;  // null when there is none
  ParameterSlot* parameter_slot(std::string_view name);
  BufferSlot* buffer_slot(std::string_view name);
  void add_child(std::string name, ModulePtr module);
  void add_parameter(std::string name, Tensor tensor);  // makes it require grad when floating
  void add_buffer(std::string name, Tensor tensor, bool persistent = true);

  // ---- calling ----
  // Runs pre-forward hooks, the method, post-forward hooks. The default method is "forward"; hooks run for forward and
  // for methods registered through register_forward_method.
  Value call(Inputs inputs, std::string_view method = "forward");
  Value call(Value x) { return call(Inputs{{std::move(x)}, {}}); }
  virtual std::vector<std::string> methods() const { return {"forward"}; }
  void register_forward_method(std::string method);

  // Draws this module's own initial values again (not its children's), and counts that; does nothing for a module that
  // draws none. On meta nothing is drawn.
  void reset_parameters();
  // A module of the same type and settings with no parameters, buffers or children yet: what clone_module fills.
  virtual ModulePtr clone_shell() const = 0;

  // ---- hooks ----
  // Order: forward-pre hooks of APIs in order of adding (prepend puts one first), then the user's innermost ones.
  enum class Place { api, user };
  using PreForward = std::function<void(Module&, Inputs&)>;
  using PostForward = std::function<void(Module&, const Inputs&, Value& outputs)>;
  HookHandle add_pre_forward(PreForward hook, Place place = Place::api, bool prepend = false);
  HookHandle add_post_forward(PostForward hook, Place place = Place::api, bool prepend = false);
  // Before backward: when the gradients of all outputs that need one are complete; after: when those of the inputs are
  // (at the end of the backward when no input needs one).
  HookHandle add_pre_backward(std::function<void(Module&)> hook, Place place = Place::user);
  HookHandle add_post_backward(std::function<void(Module&)> hook, Place place = Place::user);
  void remove_hook(HookHandle handle);
  // What an activation checkpoint puts around a call: `inner` runs all that lies inside, now or later. One a place:
  // inside all hooks of APIs, around the user's hooks and the method; or around the whole call with all its hooks.
  enum class Around { inside_apis, outside_apis };
  using CallWrapper = std::function<Value(const Inputs& inputs, const std::function<Value(const Inputs&)>& inner)>;
  void set_wrapper(Around where, CallWrapper wrapper);  // throws Error when there is one

  // ---- what parallel APIs applied here: name -> settings, with the names of the parameters they took ----
  struct Applied {
    std::map<std::string, Value> settings;
    std::vector<std::string> parameter_names;
    std::any state;  // the API's own
  };
  std::map<std::string, Applied, std::less<>> applied;
  std::string copy_refusal;  // set by an API whose modules cannot be copied: what clone_module says
  // Set by an API that exchanges parameters: puts those of this module that last into its slots, before their state is
  // read, replaced, cast or moved. settle() calls it for a whole tree.
  std::function<void()> settle;

 protected:
  // What reset_parameters does for this type.
  virtual void draw_parameters() {}
  // The method itself. Throws Error for an unknown method or wrong inputs.
  virtual Value run(std::string_view method, const Inputs& inputs) = 0;

 private:
  struct Hooks;
  Hooks& hooks();
  Value call_hooked(Inputs inputs, std::string_view method);  // hooks of APIs, and what they are around
  Value call_inside(Inputs inputs, std::string_view method);  // hooks of users, and the method
  std::function<Value(const Inputs&)> bound(Value (Module::*part)(Inputs, std::string_view), std::string_view method);
  std::string type_;
  std::vector<std::string> forward_methods_{"forward"};
  std::shared_ptr<Hooks> hooks_;
};

// ---- walking a tree; a shared module or parameter comes once, under its first name ----
struct NamedModule {
  std::string path;  // "" for the root itself
  ModulePtr module;
};
struct NamedParameter {
  std::string path;  // "fc1.weight"
  ModulePtr owner;
  std::size_t slot = 0;
  const Tensor& tensor() const { return owner->parameters[slot].tensor; }
  const Tensor& trained() const { return owner->parameters[slot].trained(); }
};
struct NamedBuffer {
  std::string path;
  ModulePtr owner;
  std::size_t slot = 0;
  const Tensor& tensor() const { return owner->buffers[slot].tensor; }
};
std::vector<NamedModule> named_modules(const ModulePtr& root);  // pre-order
std::vector<NamedParameter> named_parameters(const ModulePtr& root,
                                             bool once = true);  // `once` false: every name of a shared one
std::vector<NamedBuffer> named_buffers(const ModulePtr& root);
void settle(const ModulePtr& root);
// Gives every parameter tensor its path as name.
void name_parameters(const ModulePtr& root);

// Deep copy: structure, values, gradients, requires_grad, ties between parameters. Hooks and applied APIs are not
// copied; throws Error for a module an API refuses to copy.
ModulePtr clone_module(const ModulePtr& root);
// Puts other values under a tensor, which stays the same tensor (ties, hooks and optimizers follow): sizes must agree.
void swap_data(const Tensor& tensor, const Tensor& data);
void set_training(const ModulePtr& root, bool training);
void cast_module(const ModulePtr& root, DType dtype);  // floating parameters and buffers, gradients too
void move_module(const ModulePtr& root, device::Device device);
// Gives what is on the meta device memory, full of not-a-number (integers: zeros) until it is written.
void materialize(const ModulePtr& root, device::Device device);
// Module::reset_parameters, of sharded parameters too: every rank draws the whole and keeps its part.
void redraw(const ModulePtr& module);
void zero_grad(const ModulePtr& root, bool set_to_none = true);

// ---- state dicts ----
using StateDict = std::vector<std::pair<std::string, Tensor>>;  // parameters and persistent buffers, every name, in
                                                                // order; detached aliases
StateDict state_dict(const ModulePtr& root);
struct LoadReport {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};
// Copies values in, or with `assign` puts the tensors in place. Strict: missing or unexpected names are an Error that
// lists them all; sizes must agree in any case.
LoadReport load_state_dict(const ModulePtr& root, const StateDict& state, bool strict = true, bool assign = false);

}  // namespace lockstep::nn
