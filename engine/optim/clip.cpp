#include "engine/optim/clip.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/attribution.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

// The largest element. It compares halves with each other, so it needs no special kernel.
Tensor largest(Tensor values) {
  values = raw::contiguous(view(values, {-1}));
  while (values.size(0) > 1) {
    const std::int64_t half = (values.size(0) + 1) / 2;
    values = raw::maximum(slice(values, 0, 0, half), slice(values, 0, values.size(0) - half, values.size(0)));
  }
  return view(values, {});
}

Tensor root(const Tensor& total, double kind) { return kind == 2.0 ? raw::sqrt(total) : raw::pow(total, 1.0 / kind); }

// The contribution of one local gradient to the norm: its largest magnitude, or the sum of the powers.
Tensor norm_term(const Tensor& gradient, double kind) {
  const Tensor wide = size_of(gradient.dtype()) == 2 ? raw::cast(gradient, DType::float32) : gradient;
  if (wide.num_elements() == 0) return zeros({}, wide.dtype(), wide.device());  // an empty shard
  if (std::isinf(kind)) return largest(raw::abs(raw::contiguous(wide)));
  return raw::sum(kind == 2.0 ? raw::mul(wide, wide) : raw::pow(raw::abs(wide), kind));
}

using Axis = NormAxis;

// The sum of the terms of all gradients with the same shard axes.
struct Total {
  std::vector<Axis> axes;  // axes that the total is not reduced over yet, the innermost last
  Tensor value;
};

Tensor combine(const Tensor& a, const Tensor& b, double kind) {
  return std::isinf(kind) ? raw::maximum(a, b) : raw::add(a, b);
}

// Reduces the totals, one per element, over the ranks of the axis. `is_last`: no other axis is left.
Tensor all_reduced(const Tensor& totals, const Axis& axis, double kind, bool is_last) {
  const Tensor result =
      defect_armed(Defect::clip_norm_of_parts) || (defect_armed(Defect::clip_norm_of_one_axis) && is_last)
          ? raw::clone(totals)
          : totals;
  const comm::AttributionScope scope({comm::Family::tensor_parallel, "clip_grad_norm"});
  if (!totals.is_meta())
    comm::all_reduce(comm::group_of(axis.members, axis.name), totals,
                     std::isinf(kind) ? comm::ReduceOp::max : comm::ReduceOp::sum, comm::attributed_call());
  return result;
}

class Totals {
 public:
  explicit Totals(double kind) : kind_(kind) {}

  void add(const std::vector<Axis>& axes, const Tensor& term) {
    for (const Axis& axis : axes)
      if (std::find(order_.begin(), order_.end(), axis) == order_.end()) order_.push_back(axis);
    for (Total& total : totals_)
      if (total.axes == axes) {
        total.value = combine(total.value, term, kind_);
        return;
      }
    totals_.push_back({axes, term});
  }

  // The total over all gradients and ranks. One all_reduce per axis reduces all totals that have this axis.
  Tensor reduce() {
    while (!order_.empty()) {
      const Axis axis = next_axis();
      std::vector<Tensor> values;
      std::vector<Total> rest;
      std::vector<std::vector<Axis>> remaining_axes;
      for (Total& total : totals_) {
        if (std::erase(total.axes, axis) > 0) {
          remaining_axes.push_back(total.axes);
          values.push_back(view(total.value, {1}));
        } else {
          rest.push_back(std::move(total));
        }
      }
      totals_ = std::move(rest);
      for (Tensor& value : values) value = raw::cast(value, widest(values));
      const Tensor reduced = all_reduced(raw::cat(values, 0), axis, kind_, order_.empty());
      for (std::size_t i = 0; i < remaining_axes.size(); ++i)
        add(remaining_axes[i], select(reduced, 0, static_cast<std::int64_t>(i)));
    }
    return totals_.front().value;
  }

 private:
  // Removes and returns the next axis to reduce over: if possible, one that is the innermost axis of every total that
  // has it.
  Axis next_axis() {
    const auto is_inner = [this](const Axis& axis) {
      return std::all_of(totals_.begin(), totals_.end(), [&](const Total& total) {
        const auto at = std::find(total.axes.begin(), total.axes.end(), axis);
        return at == total.axes.end() || at + 1 == total.axes.end();
      });
    };
    auto found = std::find_if(order_.begin(), order_.end(), is_inner);
    if (found == order_.end()) found = order_.begin();
    Axis axis = *found;
    order_.erase(found);
    return axis;
  }
  static DType widest(const std::vector<Tensor>& values) {
    DType dtype = DType::float32;
    for (const Tensor& value : values) dtype = promote(dtype, value.dtype());
    return dtype;
  }

  double kind_;
  std::vector<Axis> order_;  // axes that are not reduced over yet
  std::vector<Total> totals_;
};

}  // namespace

std::vector<NormAxis> norm_axes_of(const LayoutPtr& layout) {
  std::vector<NormAxis> axes;
  if (!layout) return axes;
  for (std::size_t axis = 0; axis < layout->placements.size(); ++axis)
    if (layout->placements[axis].is_shard())
      axes.push_back({layout->mesh.names()[axis],
                      layout->mesh.axis_members(static_cast<int>(axis), RankContext::current().rank())});
  return axes;
}

GradientPart gradient_part(const Tensor& parameter) {
  const Tensor gradient = grad(parameter);
  if (!gradient.defined() || (gradient.num_elements() == 0 && !gradient.is_sharded())) return {};
  if (gradient.is_sharded() && layout::has_partial(*gradient.layout()))
    throw Error(str("clip_grad_norm: the gradient of ", parameter.name().empty() ? "a parameter" : parameter.name(),
                    " is ", describe_sharded(gradient)),
                "redistribute it first: the norm of a sum does not follow from partial sums");
  return {local_tensor(gradient), norm_axes_of(gradient.layout()), gradient.dtype()};
}

Tensor clip_parts(const std::vector<GradientPart>& parts, double max_norm, double kind, device::Device device) {
  if (!(max_norm >= 0.0)) throw Error(str("clip_grad_norm: max_norm is ", max_norm), "give 0 or more");
  if (!(kind > 0.0))
    throw Error(str("clip_grad_norm: the type of the norm is ", kind), "give a number above 0, such as 2");
  const NoGrad no_grad;
  if (parts.empty()) return zeros({}, DType::float32, device);
  Totals totals(kind);
  for (const GradientPart& part : parts) {
    const DType type = size_of(part.type) == 2 ? DType::float32 : part.type;
    const Tensor term = part.local.defined() ? norm_term(part.local, kind) : zeros({}, type, device);
    totals.add(part.axes, term.device() == device ? term : raw::to_device(term, device));
  }
  Tensor norm = totals.reduce();
  if (!std::isinf(kind)) norm = root(norm, kind);
  const Tensor factor = raw::minimum(raw::rdiv(max_norm, raw::add(norm, 1e-6)), ones({}, norm.dtype(), norm.device()));
  for (const GradientPart& part : parts) {
    if (!part.local.defined()) continue;
    const Tensor scale = raw::cast(factor, part.local.dtype());
    raw::mul_(part.local, scale.device() == part.local.device() ? scale : raw::to_device(scale, part.local.device()));
  }
  return norm;
}

Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind) {
  std::vector<GradientPart> parts;
  for (const Tensor& parameter : parameters)
    if (GradientPart part = gradient_part(parameter); part.local.defined()) parts.push_back(std::move(part));
  const Tensor first = parts.empty() ? (parameters.empty() ? Tensor() : parameters.front()) : parts.front().local;
  return clip_parts(parts, max_norm, kind, first.defined() ? first.device() : device::Device{});
}

}  // namespace lockstep::optim
