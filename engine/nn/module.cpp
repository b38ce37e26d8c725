// A module's slots, and calling it with its hooks.
#include "engine/nn/module.hpp"

#include <algorithm>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/watch.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::nn {

namespace {

template <class Slots>
auto* find_slot(Slots& slots, std::string_view name) {
  auto found = std::find_if(slots.begin(), slots.end(), [name](const auto& slot) { return slot.name == name; });
  return found == slots.end() ? nullptr : &*found;
}

void require_free_name(const Module& module, std::string_view name) {
  if (name.empty() || name.find('.') != std::string_view::npos)
    throw Error(str(module.type(), ": `", name, "` is not a name of a child, parameter or buffer"),
                "use a name that is not empty and has no dot");
  const bool taken =
      find_slot(module.children, name) || find_slot(module.parameters, name) || find_slot(module.buffers, name);
  if (taken)
    throw Error(str(module.type(), " has a child, parameter or buffer `", name, "` already"), "use another name");
}

}  // namespace

ModulePtr Module::child(std::string_view name) const {
  const ChildSlot* slot = find_slot(children, name);
  return slot ? slot->module : nullptr;
}
ParameterSlot* Module::parameter_slot(std::string_view name) { return find_slot(parameters, name); }
BufferSlot* Module::buffer_slot(std::string_view name) { return find_slot(buffers, name); }

void Module::add_child(std::string name, ModulePtr module) {
  require_free_name(*this, name);
  LOCKSTEP_CHECK(module != nullptr, type_, ".", name);
  children.push_back({std::move(name), std::move(module)});
}

void Module::add_parameter(std::string name, Tensor tensor) {
  require_free_name(*this, name);
  if (tensor.defined() && is_leaf(tensor) && is_floating(tensor.dtype())) set_requires_grad(tensor, true);
  parameters.push_back({std::move(name), std::move(tensor), {}, 0});
}

void Module::reset_parameters() {
  draw_parameters();
  for (ParameterSlot& slot : parameters)
    if (slot.tensor.defined() && !slot.trained().is_meta()) ++slot.num_draws;
}

void Module::add_buffer(std::string name, Tensor tensor, bool persistent) {
  require_free_name(*this, name);
  buffers.push_back({std::move(name), std::move(tensor), persistent});
}

void Module::register_forward_method(std::string method) {
  const auto known = methods();
  if (std::find(known.begin(), known.end(), method) == known.end())
    throw Error(str(type_, " has no method `", method, "`"), "register one that it has");
  if (std::find(forward_methods_.begin(), forward_methods_.end(), method) == forward_methods_.end())
    forward_methods_.push_back(std::move(method));
}

// ---- hooks ----
struct Module::Hooks {
  template <class F>
  struct Entry {
    HookHandle handle;
    Place place;
    F function;
  };
  template <class F>
  using List = std::vector<Entry<F>>;

  List<PreForward> pre_forward;
  List<PostForward> post_forward;
  List<std::function<void(Module&)>> pre_backward, post_backward;
  CallWrapper outside_apis, conversion, inside_apis;
  CallWrapper& wrapper(WrapperPosition where) {
    switch (where) {
      case WrapperPosition::outside_apis:
        return outside_apis;
      case WrapperPosition::conversion:
        return conversion;
      case WrapperPosition::inside_apis:
        break;
    }
    return inside_apis;
  }
  HookHandle next = 1;

  template <class F>
  HookHandle add(List<F>& list, F function, Place place, bool prepend) {
    list.insert(prepend ? list.begin() : list.end(), {next, place, std::move(function)});
    return next++;
  }
  // Copies of the functions of one place: a hook may add and remove hooks.
  template <class F>
  static std::vector<F> of(const List<F>& list, Place place) {
    std::vector<F> found;
    for (const Entry<F>& entry : list)
      if (entry.place == place) found.push_back(entry.function);
    return found;
  }
};

Module::Hooks& Module::hooks() {
  if (!hooks_) hooks_ = std::make_shared<Hooks>();
  return *hooks_;
}

HookHandle Module::add_pre_forward(PreForward hook, Place place, bool prepend) {
  return hooks().add(hooks().pre_forward, std::move(hook), place, prepend);
}
HookHandle Module::add_post_forward(PostForward hook, Place place, bool prepend) {
  return hooks().add(hooks().post_forward, std::move(hook), place, prepend);
}
HookHandle Module::add_pre_backward(std::function<void(Module&)> hook, Place place) {
  return hooks().add(hooks().pre_backward, std::move(hook), place, false);
}
HookHandle Module::add_post_backward(std::function<void(Module&)> hook, Place place) {
  return hooks().add(hooks().post_backward, std::move(hook), place, false);
}
void Module::remove_hook(HookHandle handle) {
  if (!hooks_) return;
  auto has_handle = [handle](const auto& entry) { return entry.handle == handle; };
  std::erase_if(hooks_->pre_forward, has_handle);
  std::erase_if(hooks_->post_forward, has_handle);
  std::erase_if(hooks_->pre_backward, has_handle);
  std::erase_if(hooks_->post_backward, has_handle);
}

void Module::set_wrapper(WrapperPosition where, CallWrapper wrapper) {
  CallWrapper& slot = hooks().wrapper(where);
  if (slot) throw Error(str("the calls of ", type_, " are wrapped already"), "wrap a module once");
  slot = std::move(wrapper);
}

// ---- calling ----
namespace {

using BackwardHooks = std::vector<std::function<void(Module&)>>;

Structure as_structure(const Inputs& inputs) {
  return Structure::list({Structure::list(inputs.positional), Structure::map(inputs.named)});
}

// The backward hooks of one place for one call. It watches the gradients of the call's inputs and outputs.
class BackwardWatch {
 public:
  BackwardWatch(Module& module, BackwardHooks before, BackwardHooks after)
      : module_(module.weak_from_this()), before_(std::move(before)), after_(std::move(after)) {}
  bool empty() const { return before_.empty() && after_.empty(); }

  void watch_inputs(Inputs& inputs) {
    if (after_.empty()) return;
    Structure all = as_structure(inputs);
    const std::vector<Tensor> tensors = tensors_of(all);
    std::vector<Tensor> watched = watch_passing(
        tensors, [state = state_, module = module_, after = after_] { run_once(*state, module, after); },
        Watched::inputs);
    all = with_tensors(all, watched);
    inputs.positional = all.items()[0].items();
    inputs.named = all.items()[1].entries();
  }

  void watch_outputs(const Inputs& inputs, Structure& outputs) {
    const std::vector<Tensor> watched = watch_first_gradient(
        tensors_of(outputs),
        [state = state_, module = module_, before = before_, after = after_] {
          const auto alive = module.lock();
          if (!alive) return;
          for (const auto& hook : before) hook(*alive);
          // Runs at the end of backward at the latest, because the inputs may get no gradient.
          if (!after.empty()) queue_backward_callback([state, module, after] { run_once(*state, module, after); });
        },
        tensors_of(as_structure(inputs)));
    outputs = with_tensors(outputs, watched);
  }

 private:
  struct State {
    OncePerBackward after;
  };
  static void run_once(State& state, const std::weak_ptr<Module>& module, const BackwardHooks& hooks) {
    const auto alive = module.lock();
    if (!alive || !state.after.enter()) return;
    for (const auto& hook : hooks) hook(*alive);
  }

  std::weak_ptr<Module> module_;
  BackwardHooks before_, after_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct RunningCall {
  explicit RunningCall(RankContext&) {}
  int depth = 0;
  std::uint64_t number = 0;  // of the last outermost call
};

class CallScope {
 public:
  CallScope() : call_(RankContext::current().service<RunningCall>()) {
    if (call_.depth++ == 0) ++call_.number;
  }
  ~CallScope() { --call_.depth; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  RunningCall& call_;
};

}  // namespace

std::uint64_t running_call() {
  const RunningCall& call = RankContext::current().service<RunningCall>();
  return call.depth == 0 ? 0 : call.number;
}

Structure Module::call(Inputs inputs, std::string_view method) {
  // Only the outermost call sets the forward phase. A call within backward is a recomputation, and a call within an
  // optimizer step belongs to the step.
  const comm::Phase phase = comm::current_phase();
  const comm::PhaseScope scope(phase == comm::Phase::other ? comm::Phase::forward : phase);
  const CallScope running;
  const bool hooked =
      hooks_ && std::find(forward_methods_.begin(), forward_methods_.end(), method) != forward_methods_.end();
  if (!hooked) return run(method, inputs);
  const CallWrapper wrapper = hooks_->outside_apis;
  return wrapper ? wrapper(inputs, bind_call(&Module::call_with_api_hooks, method))
                 : call_with_api_hooks(std::move(inputs), method);
}

// Binds a stage of a call, so that it can run now or again later. The result keeps the module alive.
std::function<Structure(const Inputs&)> Module::bind_call(Structure (Module::*stage)(Inputs, std::string_view),
                                                          std::string_view method) {
  return [self = shared_from_this(), stage, name = std::string(method)](const Inputs& inputs) {
    return (*self.*stage)(inputs, name);
  };
}

Structure Module::call_with_api_hooks(Inputs inputs, std::string_view method) {
  for (const auto& hook : Hooks::of(hooks_->pre_forward, Place::api)) hook(*this, inputs);
  BackwardWatch watch(*this, Hooks::of(hooks_->pre_backward, Place::api), Hooks::of(hooks_->post_backward, Place::api));
  if (!watch.empty()) watch.watch_inputs(inputs);

  const CallWrapper wrapper = hooks_->conversion;
  Structure outputs =
      wrapper ? wrapper(inputs, bind_call(&Module::call_converted, method)) : call_converted(inputs, method);

  for (const auto& hook : Hooks::of(hooks_->post_forward, Place::api)) hook(*this, inputs, outputs);
  if (!watch.empty()) watch.watch_outputs(inputs, outputs);
  return outputs;
}

Structure Module::call_converted(Inputs inputs, std::string_view method) {
  const CallWrapper wrapper = hooks_->inside_apis;
  return wrapper ? wrapper(inputs, bind_call(&Module::call_with_user_hooks, method))
                 : call_with_user_hooks(std::move(inputs), method);
}

Structure Module::call_with_user_hooks(Inputs inputs, std::string_view method) {
  for (const auto& hook : Hooks::of(hooks_->pre_forward, Place::user)) hook(*this, inputs);
  BackwardWatch watch(*this, Hooks::of(hooks_->pre_backward, Place::user),
                      Hooks::of(hooks_->post_backward, Place::user));
  if (!watch.empty()) watch.watch_inputs(inputs);

  Structure outputs = run(method, inputs);

  if (!watch.empty()) watch.watch_outputs(inputs, outputs);
  for (const auto& hook : Hooks::of(hooks_->post_forward, Place::user)) hook(*this, inputs, outputs);
  return outputs;
}

}  // namespace lockstep::nn
