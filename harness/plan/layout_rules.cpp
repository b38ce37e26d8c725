#include "harness/plan/layout_rules.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/core/checked.hpp"

namespace lockstep::plan {

namespace {

using layout::Placement;
using layout::ShardedLayout;
using Result = std::optional<ShardedLayout>;

template <std::size_t n>
bool is_one_of(std::string_view operation, const std::array<std::string_view, n>& names) {
  return std::find(names.begin(), names.end(), operation) != names.end();
}

constexpr std::array<std::string_view, 17> element_wise = {"relu", "gelu",  "tanh",      "sigmoid", "exp",    "log",
                                                           "sqrt", "rsqrt", "abs",       "neg",     "pow",    "cast",
                                                           "rsub", "rdiv",  "to_device", "clone",   "dropout"};
// Those that a sum of partial values passes through.
constexpr std::array<std::string_view, 4> linear_element_wise = {"neg", "clone", "to_device", "watch_gradients"};
constexpr std::array<std::string_view, 4> of_two = {"add", "sub", "mul", "div"};
constexpr std::array<std::string_view, 5> of_shape = {"view", "reshape", "flatten", "squeeze", "unsqueeze"};
constexpr std::array<std::string_view, 7> of_condition = {"eq", "ne", "lt", "le", "gt", "ge", "where"};
// Along a dim that no axis may shard, which keeps its size.
constexpr std::array<std::string_view, 2> along_dim = {"softmax", "log_softmax"};
// Views and joins that keep all dims but one, and neither split nor merge dims. A sum of partial values passes through.
constexpr std::array<std::string_view, 6> of_positions = {"slice", "split", "cat", "select", "stack", "expand"};
constexpr std::array<std::string_view, 2> of_order = {"transpose", "permute"};

// The operation whose rule an operation in place follows, such as `add` for `add_`.
std::string_view rule_of(std::string_view operation) {
  return is_in_place(operation) ? operation.substr(0, operation.size() - 1) : operation;
}
// Those that are in place only: their rule is that of two operands of one layout.
constexpr std::array<std::string_view, 3> of_values = {"copy", "zero", "fill"};

bool is_replicated(const ShardedLayout& layout) { return !layout::has_shard(layout) && !layout::has_partial(layout); }

std::int64_t product_before(const Dims& sizes, int dim) {
  std::int64_t product = 1;
  for (int i = 0; i < dim; ++i) product = checked_multiply(product, sizes[i], "plan");
  return product;
}

// A dim of the result with the same size and as many elements before it. With size 1 there may be several.
int same_dim(const Dims& from, int dim, const Dims& to) {
  int found = -1;
  for (int i = 0; i < to.size(); ++i)
    if (to[i] == from[dim] && product_before(to, i) == product_before(from, dim)) {
      if (found >= 0) return -1;
      found = i;
    }
  return found;
}

Result reshaped(const ShardedLayout& operand, const Dims& sizes) {
  ShardedLayout result{operand.mesh, operand.placements, sizes};
  for (Placement& placement : result.placements) {
    if (!placement.is_shard()) continue;
    placement.dim = same_dim(operand.sizes, placement.dim, sizes);
    if (placement.dim < 0) return {};
  }
  return result;
}

// The placement of a shard after some dims of `from` were removed, so that `to` is left. `of_removed`: if its own dim
// was one of them; empty if no such operation exists. Empty if the sizes allow several placements.
std::optional<Placement> after_removal(const Dims& from, const Placement& shard, const Dims& to,
                                       const std::optional<Placement>& of_removed) {
  std::optional<Placement> found;
  for (unsigned removed = 0; removed < 1u << from.size(); ++removed) {
    Dims rest;
    Placement placement = shard;
    for (int dim = 0; dim < from.size(); ++dim)
      if (((removed >> dim) & 1u) == 0)
        rest.push_back(from[dim]);
      else if (dim < shard.dim)
        --placement.dim;
    if (!(rest == to)) continue;
    if ((removed >> shard.dim) & 1u) {
      if (!of_removed) continue;
      placement = *of_removed;
    }
    if (found && !(*found == placement)) return {};
    found = placement;
  }
  return found;
}

// A reduction over dims that are removed or kept with size 1. `of_reduced`: the placement where the dim of a shard is
// one of them; empty if no axis may shard these.
Result reduced(const ShardedLayout& operand, const Dims& sizes, const std::optional<Placement>& of_reduced) {
  ShardedLayout result{operand.mesh, operand.placements, sizes};
  for (Placement& placement : result.placements) {
    if (!placement.is_shard()) continue;
    std::optional<Placement> after = placement;
    if (sizes.size() != operand.sizes.size())
      after = after_removal(operand.sizes, placement, sizes, of_reduced);
    else if (sizes[placement.dim] == 1 && operand.sizes[placement.dim] > 1)
      after = of_reduced;
    else if (sizes[placement.dim] != operand.sizes[placement.dim] || sizes[placement.dim] == 1)
      after = {};
    if (!after) return {};
    placement = *after;
  }
  return result;
}

// The operand with its dims in another order: a sharded dim is the only one of its size.
Result reordered(const ShardedLayout& operand, const Dims& sizes) {
  ShardedLayout result{operand.mesh, operand.placements, sizes};
  for (Placement& placement : result.placements) {
    if (!placement.is_shard()) continue;
    const std::int64_t size = operand.sizes[placement.dim];
    if (std::count(sizes.begin(), sizes.end(), size) != 1) return {};
    placement.dim = static_cast<int>(std::find(sizes.begin(), sizes.end(), size) - sizes.begin());
  }
  return result;
}

// Operands of one layout, of which no axis shards the dim that changes, is removed or is new.
Result of_unsharded_dim(std::string_view operation, const std::vector<Operand>& operands, const Dims& sizes) {
  const std::optional<ShardedLayout>& first = operands.front().layout;
  for (const Operand& operand : operands)
    if (!operand.layout || !(operand.layout->mesh == first->mesh) || operand.layout->placements != first->placements)
      return {};
  ShardedLayout result{first->mesh, first->placements, sizes};
  for (Placement& placement : result.placements) {
    if (!placement.is_shard()) continue;
    const std::int64_t size = first->sizes[placement.dim];
    std::optional<Placement> after = placement;
    if (operation == "select") {
      after = after_removal(first->sizes, placement, sizes, {});
    } else if (operation == "stack") {  // the dims of which the removal of one gives those of the operands
      after = {};
      for (int dim = 0; dim < sizes.size(); ++dim) {
        Dims rest = sizes;
        rest.erase(dim);
        if (!(rest == first->sizes)) continue;
        const int moved = placement.dim + (dim <= placement.dim ? 1 : 0);
        if (after && after->dim != moved) return {};
        after = placement;
        after->dim = moved;
      }
    } else if (operation == "expand") {
      after->dim += sizes.size() - first->sizes.size();
    }
    if (!after || sizes[after->dim] != size) return {};
    placement = *after;
  }
  return result;
}

// q, k and v with the same leading dims sharded.
Result attended(const std::vector<Operand>& operands, const Dims& sizes) {
  const std::optional<ShardedLayout>& first = operands.front().layout;
  for (const Operand& operand : operands)
    if (!operand.layout || !(operand.layout->mesh == first->mesh) || operand.layout->placements != first->placements)
      return {};
  for (const Placement& placement : first->placements)
    if (placement.is_partial() || (placement.is_shard() && placement.dim >= sizes.size() - 2)) return {};
  return ShardedLayout{first->mesh, first->placements, sizes};
}

// The elements at the positions `index` of a dim, which is the only one whose size changes.
Result selected(const std::vector<Operand>& operands, const Dims& sizes) {
  if (!operands[0].layout || !operands[1].layout) return {};
  const ShardedLayout &from = *operands[0].layout, &index = *operands[1].layout;
  if (!(from.mesh == index.mesh) || from.sizes.size() != sizes.size()) return {};
  int dim = -1;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == from.sizes[i]) continue;
    if (dim >= 0) return {};
    dim = i;
  }
  if (dim < 0) return {};
  ShardedLayout result{from.mesh, from.placements, sizes};
  for (std::size_t axis = 0; axis < result.placements.size(); ++axis) {
    const Placement &of_from = from.placements[axis], &of_index = index.placements[axis];
    if (of_from.is_partial() || of_index.is_partial() || (of_from.is_shard() && of_index.is_shard())) return {};
    if (of_index.is_shard()) {
      result.placements[axis] = of_index;
      result.placements[axis].dim = dim;
    } else if (of_from.is_shard(dim)) {
      result.placements[axis] = layout::partial();
    }
  }
  return result;
}

// The rows of a weight (n, d) at indices.
Result looked_up(const std::vector<Operand>& operands, const Dims& sizes) {
  if (!operands[0].layout || !operands[1].layout) return {};
  const ShardedLayout &weight = *operands[0].layout, &indices = *operands[1].layout;
  if (!(weight.mesh == indices.mesh)) return {};
  ShardedLayout result{weight.mesh, weight.placements, sizes};
  for (std::size_t axis = 0; axis < result.placements.size(); ++axis) {
    const Placement &of_weight = weight.placements[axis], &of_index = indices.placements[axis];
    if (of_weight.is_replicate() && !of_index.is_partial())
      result.placements[axis] = of_index;
    else if (of_weight == layout::shard(1) && of_index.is_replicate())
      result.placements[axis] = layout::shard(sizes.size() - 1);
    else if (of_weight == layout::shard(0) && of_index.is_replicate())
      result.placements[axis] = layout::partial();
    else
      return {};
  }
  return result;
}

// Two operands, of which a plain one is a number; the condition of `where` is a third one.
Result combined(std::string_view operation, const std::vector<Operand>& operands, const Dims& sizes) {
  const ShardedLayout* common = nullptr;
  bool has_number = operands.size() == 1;
  for (const Operand& operand : operands) {
    if (!operand.layout) {
      if (!operand.sizes.empty()) return {};
      has_number = true;
    } else if (common && !(common->mesh == operand.layout->mesh && common->placements == operand.layout->placements)) {
      return {};
    } else if (!common || operand.sizes == sizes) {
      common = &*operand.layout;
    }
  }
  if (layout::has_partial(*common) && is_one_of(operation, of_condition)) return {};
  const bool is_sum = operation == "add" || operation == "sub";
  if (layout::has_partial(*common) && is_sum == has_number) return {};
  for (const Operand& operand : operands)  // broadcasting along a sharded dim makes a partial gradient
    if (operand.layout && operand.sizes != sizes && !is_replicated(*operand.layout)) return {};
  return ShardedLayout{common->mesh, common->placements, sizes};
}

}  // namespace

Result layout_after(std::string_view name, const std::vector<Operand>& operands, const Dims& sizes) {
  const std::string_view operation = rule_of(name);
  if (is_one_of(operation, of_values) && operands.size() == 1) return operands.front().layout;
  if (is_one_of(operation, of_values) || is_one_of(operation, of_two) || is_one_of(operation, of_condition))
    return combined(operation, operands, sizes);
  if (operation == "embedding" && operands.size() == 2) return looked_up(operands, sizes);
  const bool all_replicated = std::all_of(operands.begin(), operands.end(), [](const Operand& operand) {
    return operand.layout && is_replicated(*operand.layout);
  });
  const ShardedLayout* first = nullptr;
  for (const Operand& operand : operands)
    if (operand.layout && !first) first = &*operand.layout;
  if (all_replicated) return ShardedLayout{first->mesh, first->placements, sizes};
  if (operation == "index_select" && operands.size() == 2) return selected(operands, sizes);
  if (is_one_of(operation, of_positions)) return of_unsharded_dim(operation, operands, sizes);
  if (operation == "attention") return attended(operands, sizes);
  if (operands.size() != 1) return {};
  if (is_one_of(operation, of_order)) return reordered(*first, sizes);
  if (layout::has_partial(*first) && !is_one_of(operation, linear_element_wise)) return {};
  if (is_one_of(operation, element_wise) || is_one_of(operation, linear_element_wise) ||
      is_one_of(operation, along_dim))
    return *first;
  if (is_one_of(operation, of_shape)) return reshaped(*first, sizes);
  if (operation == "sum" || operation == "mean") return reduced(*first, sizes, layout::partial());
  if (operation == "max") return reduced(*first, sizes, layout::partial(layout::PartialOp::max));
  if (operation == "min") return reduced(*first, sizes, layout::partial(layout::PartialOp::min));
  if (operation == "argmax") return reduced(*first, sizes, {});
  if (operation == "cross_entropy") {  // of each row, or the sum or mean over all rows
    ShardedLayout result{first->mesh, first->placements, sizes};
    for (Placement& placement : result.placements)
      if (placement.is_shard(first->sizes.size() - 1))
        placement = layout::replicate();
      else if (placement.is_shard() && sizes.empty())
        placement = layout::partial();
    return result;
  }
  return {};
}

std::optional<WeightedReading> weighted_reading(std::string_view operation,
                                                const std::vector<ShardedLayout>& operands) {
  const bool is_linear = operation == "linear", is_norm = operation == "layer_norm" || operation == "rms_norm";
  if ((!is_linear && !is_norm) || operands.size() < 2 || operands.size() > 3) return {};
  const ShardedLayout &input = operands[0], &weight = operands[1], &bias = operands.back();
  if (!(input.mesh == weight.mesh) || !(input.mesh == bias.mesh) || input.sizes.empty()) return {};
  const bool has_bias = operands.size() == 3;
  const int last = input.sizes.size() - 1;
  Dims sizes = input.sizes;
  if (is_linear) sizes[last] = weight.sizes[0];
  WeightedReading reading{{input.mesh, input.placements, sizes}, false, {}};
  for (std::size_t axis = 0; axis < input.placements.size(); ++axis) {
    const Placement x = input.placements[axis], w = weight.placements[axis];
    const Placement b = has_bias ? bias.placements[axis] : layout::replicate();
    Placement& result = reading.result.placements[axis];
    if (is_linear && x.is_replicate() && w == layout::shard(0) && (!has_bias || b == layout::shard(0))) {
      result = layout::shard(last);
      reading.input_gradient_is_partial = true;
    } else if (is_linear && x == layout::shard(last) && w == layout::shard(1) && b.is_replicate()) {
      result = layout::partial();
    } else if (!w.is_replicate() || !b.is_replicate() || x.is_partial() || x == layout::shard(last)) {
      return {};
    } else if (x.is_shard()) {
      reading.partial_axes.push_back(static_cast<int>(axis));
    }
  }
  return reading;
}

std::vector<int> axes_of_partial_gradient(std::string_view name, const std::vector<ShardedLayout>& operands,
                                          std::size_t index) {
  std::vector<int> axes;
  const std::string_view operation = rule_of(name);
  if (!is_one_of(operation, of_two) && operation != "where" && operation != "copy") return axes;
  const ShardedLayout& of = operands[index];
  for (std::size_t axis = 0; axis < of.placements.size(); ++axis) {
    const bool is_sharded_elsewhere = std::any_of(operands.begin(), operands.end(), [&](const ShardedLayout& other) {
      return other.mesh == of.mesh && other.placements[axis].is_shard();
    });
    if (of.placements[axis].is_replicate() && is_sharded_elsewhere) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

bool is_local_operation(std::string_view name) {
  const std::string_view operation = rule_of(name);
  return is_one_of(operation, of_values) || is_one_of(operation, element_wise) ||
         is_one_of(operation, linear_element_wise) || is_one_of(operation, of_two) || is_one_of(operation, of_shape) ||
         is_one_of(operation, of_condition) || is_one_of(operation, along_dim) || is_one_of(operation, of_positions) ||
         is_one_of(operation, of_order) || operation == "sum" || operation == "mean" || operation == "attention";
}

std::vector<Movement> cross_entropy_movements(const ShardedLayout& logits, const Loss& loss, int rank) {
  const int classes = logits.sizes.size() - 1;
  ShardedLayout rows{logits.mesh, logits.placements, {1}};  // dim 0: the numbers per row
  for (int dim = 0; dim < classes; ++dim) rows.sizes.push_back(logits.sizes[dim]);
  ShardedLayout total{logits.mesh, logits.placements, {}};
  for (std::size_t axis = 0; axis < logits.placements.size(); ++axis) {
    Placement& placement = rows.placements[axis];
    const bool shards_classes = placement.is_shard(classes);
    total.placements[axis] = placement.is_shard() && !shards_classes ? layout::partial() : layout::replicate();
    if (shards_classes)
      placement = layout::partial();
    else
      placement.dim += 1;
  }
  std::vector<Movement> movements;
  const auto reduce = [&movements, rank](const ShardedLayout& from) {
    for (const Movement& movement : redistribution(from, gradient_placements(from.placements), rank))
      movements.push_back(movement);
  };
  reduce(rows);  // the maximum
  reduce(rows);  // the sum of the exponentials
  rows.sizes[0] = loss.shards_weight ? 2 : 1;
  reduce(rows);
  if (loss.divides_by_weights) reduce(total);
  return movements;
}

}  // namespace lockstep::plan
