// The module tree: children, parameter slots, buffers, methods and hooks.
//
// A parameter is stored in a slot of its module. A parallel API may put another tensor into the slot (a view of an
// unsharded parameter, a sharded tensor); names and order do not change. Calling a module runs its hooks around the
// method. Modules are not copyable; clone_module makes a deep copy. A module belongs to one rank and its thread.
//
//   auto net = std::make_shared<Sequential>(...);
//   Structure y = net->call({x});
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

#include "engine/nn/structure.hpp"

namespace lockstep::nn {

class Module;
using ModulePtr = std::shared_ptr<Module>;

// The arguments of a call. Hooks may replace them.
struct Inputs {
  std::vector<Structure> positional;
  Structure::Map named;
};

struct ParameterSlot {
  std::string name;  // within the module: "weight"
  Tensor tensor;     // the tensor the module computes with; undefined if it has none (bias = false)
  Tensor sharded;    // the sharded parameter, defined while an API shards it; `tensor` may then be its unsharded form
  const Tensor& trained() const { return sharded.defined() ? sharded : tensor; }  // the tensor that optimizers update
  int num_draws = 0;   // number of times the initial values were drawn or set; clones keep the number
  bool listed = true;  // false while an API trains another tensor in its place: named_parameters leaves it out
};
struct BufferSlot {
  std::string name;
  Tensor tensor;
  bool persistent = true;  // whether state dicts include it
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
  // Each returns null if there is none with this name.
  ModulePtr child(std::string_view name) const;
  ParameterSlot* parameter_slot(std::string_view name);
  BufferSlot* buffer_slot(std::string_view name);
  // Each throws Error for a name that is empty, has a dot or is already used in this module.
  void add_child(std::string name, ModulePtr module);
  void add_parameter(std::string name, Tensor tensor);  // a floating leaf will require a gradient
  void add_buffer(std::string name, Tensor tensor, bool persistent = true);

  // ---- calling ----
  // Runs the pre-forward hooks, the method and the post-forward hooks, and returns the method's output. Hooks run for
  // "forward" and for methods registered through register_forward_method. Throws Error for an unknown method or wrong
  // inputs.
  Structure call(Inputs inputs, std::string_view method = "forward");
  Structure call(Structure x) { return call(Inputs{{std::move(x)}, {}}); }
  virtual std::vector<std::string> methods() const { return {"forward"}; }
  void register_forward_method(std::string method);  // throws Error for an unknown method

  // Draws the initial values of this module (not of its children) again and increments num_draws. On meta it draws
  // nothing.
  void reset_parameters();
  // Returns a module of the same type and settings without parameters, buffers and children. clone_module fills it.
  virtual ModulePtr clone_shell() const = 0;

  // ---- hooks ----
  // The hooks of APIs run outside the hooks of users. Within a place they run in the order in which they were added;
  // `prepend` adds one at the front.
  enum class Place { api, user };
  using PreForward = std::function<void(Module&, Inputs&)>;
  using PostForward = std::function<void(Module&, const Inputs&, Structure& outputs)>;
  HookHandle add_pre_forward(PreForward hook, Place place = Place::api, bool prepend = false);
  HookHandle add_post_forward(PostForward hook, Place place = Place::api, bool prepend = false);
  // Pre-backward hooks run when the gradients of all outputs that require one are complete. Post-backward hooks run
  // when the gradients of the inputs are complete, or at the end of backward if no input requires one.
  HookHandle add_pre_backward(std::function<void(Module&)> hook, Place place = Place::user);
  HookHandle add_post_backward(std::function<void(Module&)> hook, Place place = Place::user);
  void remove_hook(HookHandle handle);
  // A wrapper runs `inner`, a part of the call, once or several times. One wrapper per position, from the outside:
  // outside_apis (around the complete call with all hooks) and inside_apis (around the hooks of users and the method)
  // are for activation checkpoints, which run `inner` again in backward. Between them, inside the hooks of APIs, is
  // conversion, for the API that converts inputs and outputs.
  enum class WrapperPosition { outside_apis, conversion, inside_apis };
  using CallWrapper =
      std::function<Structure(const Inputs& inputs, const std::function<Structure(const Inputs&)>& inner)>;
  void set_wrapper(WrapperPosition where, CallWrapper wrapper);  // throws Error if the position has a wrapper

  // ---- the parallel APIs applied to this module, by name ----
  struct Applied {
    std::map<std::string, Structure> settings;
    std::vector<std::string> parameter_names;  // the parameters that the API manages
    std::any state;                            // owned by the API
  };
  std::map<std::string, Applied, std::less<>> applied;
  std::string copy_refusal;  // set by an API whose modules cannot be cloned: the message of clone_module's Error
  // Set by an API that exchanges the tensors in the slots: makes the slots hold the trained parameters. It runs before
  // the state of the module is read, replaced, cast or moved. The function settle() runs it for a tree.
  std::function<void()> settle;

 protected:
  // Draws the initial values of this module.
  virtual void draw_parameters() {}
  // Runs the method without hooks. Throws Error for an unknown method or wrong inputs.
  virtual Structure run(std::string_view method, const Inputs& inputs) = 0;

 private:
  struct Hooks;
  Hooks& hooks();
  Structure call_with_api_hooks(Inputs inputs, std::string_view method);   // runs the hooks of APIs around the rest
  Structure call_converted(Inputs inputs, std::string_view method);        // runs the rest without conversion
  Structure call_with_user_hooks(Inputs inputs, std::string_view method);  // runs the hooks of users around the method
  std::function<Structure(const Inputs&)> bind_call(Structure (Module::*stage)(Inputs, std::string_view),
                                                    std::string_view method);
  std::string type_;
  std::vector<std::string> forward_methods_{"forward"};
  std::shared_ptr<Hooks> hooks_;
};

// The number of the outermost call of a module that runs on this rank. Each one has another number; 0: none runs.
std::uint64_t running_call();

// ---- traversal of a tree; a shared module or parameter is listed once, under its first name ----
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
// With `once` false, a shared parameter is listed under each of its names.
std::vector<NamedParameter> named_parameters(const ModulePtr& root, bool once = true);
std::vector<NamedBuffer> named_buffers(const ModulePtr& root);
// Makes the slots of all modules hold the trained parameters (Module::settle).
void settle(const ModulePtr& root);
// Sets the name of every parameter tensor to its path.
void name_parameters(const ModulePtr& root);

// Returns a deep copy: structure, values, gradients, requires_grad, and ties between parameters. Parameters and buffers
// keep the order of their memory, and those that share memory share that of the copy. Hooks and applied APIs are not
// copied. Throws Error for a module with a copy_refusal and for parameters that are not leaves.
ModulePtr clone_module(const ModulePtr& root);
// Replaces the storage, strides and type of a tensor by those of `data`, which has the same sizes. The tensor keeps its
// identity, so ties, hooks and optimizers follow.
void swap_data(const Tensor& tensor, const Tensor& data);
void set_training(const ModulePtr& root, bool training);
// Casts floating parameters, their gradients, and floating buffers. Throws Error for a type that is not floating.
void cast_module(const ModulePtr& root, DType dtype);
// Moves parameters, their gradients, and buffers to the device.
void move_module(const ModulePtr& root, device::Device device);
// Allocates the parameters, gradients and buffers that are on the meta device on `device`, filled with NaN (integers
// with 0).
void materialize(const ModulePtr& root, device::Device device);
// Module::reset_parameters, also for sharded parameters: every rank draws the full parameter and keeps its shard.
void redraw(const ModulePtr& module);
void zero_grad(const ModulePtr& root, bool set_to_none = true);

// ---- state dicts ----
// Parameters and persistent buffers by path, in registration order. A shared tensor has an entry for each of its names.
using StateDict = std::vector<std::pair<std::string, Tensor>>;
StateDict state_dict(const ModulePtr& root);  // detached aliases; a sharded parameter is a sharded tensor
struct LoadReport {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};
// Copies the values into the module's tensors, or with `assign` replaces the tensors. Returns the missing and
// unexpected names; with `strict` they are an Error. Throws Error, with all problems, if sizes or layouts of a tensor
// differ.
LoadReport load_state_dict(const ModulePtr& root, const StateDict& state, bool strict = true, bool assign = false);

}  // namespace lockstep::nn
