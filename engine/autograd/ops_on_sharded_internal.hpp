// Shared by the ops_on_sharded*.cpp of this folder.
#pragma once

#include <vector>

#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/layout/placement.hpp"

namespace lockstep::ops {

inline const sharding::ShardedLayout& layout_of(const Tensor& a) { return *a.layout(); }
LayoutPtr make_layout(const sharding::ShardedLayout& layout);
// The operands that are not null.
std::vector<Tensor> given(const Tensor& a, const Tensor* b, const Tensor* c = nullptr);
// Throws Error when sharded and plain operands are mixed.
void require_unmixed(const char* name, const std::vector<Tensor>& operands);
// The local shard of an operand in the layout that a rule asks for; its gradient has the layout of the rule. This may
// run a collective, so callers evaluate operands in separate statements, in a fixed order.
Tensor local_for(const Tensor& a, const sharding::ShardedLayout& where, const sharding::ShardedLayout& gradient);
// Per dim, the ranges of the full tensor that this rank holds.
std::vector<std::vector<layout::Chunk>> held_by_rank(const sharding::ShardedLayout& layout);

}  // namespace lockstep::ops
