#include "engine/mesh/sharded.hpp"

#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep {

Tensor make_sharded(const Tensor& local, LayoutPtr layout) {
  const Dims wanted = layout::local_sizes(*layout, RankContext::current().rank());
  if (local.sizes() != wanted)
    throw Error(str("a local part of sizes ", to_text(local.sizes()), " for a tensor ", layout->text()),
                str("on this rank the part is ", to_text(wanted)));
  const Tensor result = alias(local);
  result.impl().layout = std::move(layout);
  return result;
}

Tensor make_sharded(const Tensor& local, layout::ShardedLayout layout) {
  return make_sharded(local, std::make_shared<const layout::ShardedLayout>(std::move(layout)));
}

Tensor local_tensor(const Tensor& tensor) {
  if (!tensor.is_sharded()) return tensor;
  const Tensor local = alias(tensor);
  local.impl().layout = nullptr;
  return local;
}

}  // namespace lockstep
