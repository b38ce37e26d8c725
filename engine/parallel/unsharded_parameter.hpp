// One parameter of a sharded group as the module computes with it: its slots, the unsharded leaf that they hold while
// the group is unsharded, and its gradients before they are reduced.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

struct ParameterSlotRef {
  std::weak_ptr<nn::Module> owner;
  std::size_t slot = 0;
  nn::ParameterSlot& get() const;
};

// A gradient of an unsharded parameter.
struct FullGradient {
  Tensor local;      // plain; undefined: none
  LayoutPtr layout;  // null without tensor parallelism
  bool defined() const { return local.defined(); }
};
// The same gradient in the layout of the unsharded parameter, without partial sums: one all-reduce over the axis of
// tensor parallelism if it is partial there.
FullGradient reduced_over_inner_axes(const FullGradient& gradient, const std::string& owner);

// The leaf `old` gives way to one of another type. A backward that needs `old` fails with these words.
void mark_replaced(const Tensor& old, DType dtype);

// A shared parameter is one parameter with several slots.
struct UnshardedParameter {
  std::string name;  // the path below the module of the group
  std::vector<ParameterSlotRef> slots;
  LayoutPtr inner_layout;  // that of tensor parallelism, null without it
  Tensor leaf;             // undefined before the first all-gather; its storage has memory while the group is unsharded
  bool is_new_leaf = false;  // has no accumulator yet

  // ---- full gradients; with tensor parallelism their local shards, which may be partial sums over its axes ----
  FullGradient fresh;        // of the running backward
  FullGradient accumulated;  // of backwards without gradient synchronization

  virtual ~UnshardedParameter() = default;
  virtual bool requires_grad() const = 0;

 protected:
  UnshardedParameter(std::string name_below, std::vector<ParameterSlotRef> of)
      : name(std::move(name_below)), slots(std::move(of)) {}
  UnshardedParameter(UnshardedParameter&&) = default;
  UnshardedParameter& operator=(UnshardedParameter&&) = default;
};

}  // namespace lockstep::parallel
