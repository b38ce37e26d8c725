#include "engine/optim/clip.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

// The largest magnitude: halves are compared with halves, so that no operation of its own is needed.
Tensor largest(Tensor values) {
  values = raw::contiguous(view(values, {-1}));
  while (values.size(0) > 1) {
    const std::int64_t half = (values.size(0) + 1) / 2;
    values = raw::maximum(slice(values, 0, 0, half), slice(values, 0, values.size(0) - half, values.size(0)));
  }
  return view(values, {});
}

Tensor root(const Tensor& total, double kind) { return kind == 2.0 ? raw::sqrt(total) : raw::pow(total, 1.0 / kind); }

// What one gradient adds to the norm: the largest magnitude, or the sum of powers.
Tensor share_of(const Tensor& gradient, double kind) {
  const Tensor wide = size_of(gradient.dtype()) == 2 ? raw::cast(gradient, DType::float32) : gradient;
  if (wide.num_elements() == 0) return zeros({}, wide.dtype(), wide.device());  // of a rank that holds nothing
  if (std::isinf(kind)) return largest(raw::abs(raw::contiguous(wide)));
  return raw::sum(kind == 2.0 ? raw::mul(wide, wide) : raw::pow(raw::abs(wide), kind));
}

// A mesh axis that cuts gradients, as this rank sees it.
struct Axis {
  std::string name;
  std::vector<int> members;  // the ranks along it
  friend bool operator==(const Axis&, const Axis&) = default;
};

// What adds up alike: the shares of gradients that the same axes cut.
struct Total {
  std::vector<Axis> axes;  // still to be added over, the inner one last
  Tensor value;
};

std::vector<Axis> cutting_axes(const Tensor& parameter, const Tensor& gradient) {
  std::vector<Axis> axes;
  if (!gradient.is_sharded()) return axes;
  const layout::ShardedLayout& layout = *gradient.impl().layout;
  if (layout::has_partial(layout))
    throw Error(str("clip_grad_norm: the gradient of ", parameter.name().empty() ? "a parameter" : parameter.name(),
                    " is ", describe_sharded(gradient)),
                "redistribute it: parts of a sum have no norm of their own");
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
    if (layout.placements[axis].is_shard())
      axes.push_back(
          {layout.mesh.names()[axis], layout.mesh.axis_members(static_cast<int>(axis), RankContext::current().rank())});
  return axes;
}

Tensor added(const Tensor& a, const Tensor& b, double kind) {
  return std::isinf(kind) ? raw::maximum(a, b) : raw::add(a, b);
}

class Totals {
 public:
  explicit Totals(double kind) : kind_(kind) {}

  void add(const std::vector<Axis>& axes, const Tensor& share) {
    for (const Axis& axis : axes)
      if (std::find(order_.begin(), order_.end(), axis) == order_.end()) order_.push_back(axis);
    for (Total& total : totals_)
      if (total.axes == axes) {
        total.value = added(total.value, share, kind_);
        return;
      }
    totals_.push_back({axes, share});
  }

  // The total of all: one all_reduce an axis, of all totals that it cuts at once.
  Tensor whole() {
    while (!order_.empty()) {
      const Axis axis = next_axis();
      std::vector<Tensor> shares;
      std::vector<Total> rest;
      std::vector<std::vector<Axis>> left;
      for (Total& total : totals_) {
        if (std::erase(total.axes, axis) > 0) {
          left.push_back(total.axes);
          shares.push_back(view(total.value, {1}));
        } else {
          rest.push_back(std::move(total));
        }
      }
      totals_ = std::move(rest);
      for (Tensor& share : shares) share = raw::cast(share, widest(shares));
      const Tensor reduced = raw::cat(shares, 0);
      comm::Call call;
      call.family = comm::Family::tensor_parallel;
      const Tensor mine = defect_armed(Defect::clip_norm_of_parts) ? raw::clone(reduced) : reduced;
      if (!reduced.is_meta())
        comm::all_reduce(comm::group_of(axis.members, axis.name), reduced,
                         std::isinf(kind_) ? comm::ReduceOp::max : comm::ReduceOp::sum, call);
      for (std::size_t i = 0; i < left.size(); ++i) add(left[i], select(mine, 0, static_cast<std::int64_t>(i)));
    }
    return totals_.front().value;
  }

 private:
  // Where there is one, an axis that is the inner one of every total it is to be added over.
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
  std::vector<Axis> order_;  // axes that are still to be added over
  std::vector<Total> totals_;
};

}  // namespace

Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, double kind) {
  if (!(max_norm >= 0.0)) throw Error(str("clip_grad_norm: max_norm is ", max_norm), "give 0 or more");
  if (!(kind > 0.0)) throw Error(str("clip_grad_norm: the norm of kind ", kind), "give a number above 0, such as 2");
  const NoGrad no_grad;
  std::vector<Tensor> gradients;
  Totals totals(kind);
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = grad(parameter);
    if (!gradient.defined() || (gradient.num_elements() == 0 && !gradient.is_sharded())) continue;
    const Tensor local = local_tensor(gradient);
    totals.add(cutting_axes(parameter, gradient), share_of(local, kind));
    gradients.push_back(local);
  }
  if (gradients.empty())
    return zeros({}, DType::float32, parameters.empty() ? device::Device{} : parameters.front().device());

  Tensor norm = totals.whole();
  if (!std::isinf(kind)) norm = root(norm, kind);
  const Tensor factor = raw::minimum(raw::rdiv(max_norm, raw::add(norm, 1e-6)), ones({}, norm.dtype(), norm.device()));
  for (const Tensor& gradient : gradients) raw::mul_(gradient, raw::cast(factor, gradient.dtype()));
  return norm;
}

}  // namespace lockstep::optim
