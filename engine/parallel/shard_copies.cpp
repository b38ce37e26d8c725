#include "engine/parallel/shard_copies.hpp"

#include <memory>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/layout/placement.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// The two sides of a copy, as views of equal sizes: the shards are a dim of their own before the sharded dim.
struct Sides {
  Tensor full, flat;
};
Sides sides_of(const Tensor& full, const Tensor& gathered, const layout::ShardedParameter& cut,
               const layout::ShardCopy& copy) {
  const int dim = cut.dim;
  const Dims padded = layout::padded_shard_sizes(cut);
  Dims sizes = padded;
  sizes[dim] = copy.length;
  Dims full_strides = full.strides(), flat_strides = contiguous_strides(padded);
  const std::int64_t full_offset = full.offset() + bounded_product(copy.begin, full_strides[dim]);
  const std::int64_t step = bounded_product(full_strides[dim], copy.length);
  sizes.insert(dim, copy.num_shards);
  full_strides.insert(dim, step);
  flat_strides.insert(dim, copy.flat_stride);
  return {as_strided(full, sizes, full_strides, full_offset),
          as_strided(gathered, sizes, flat_strides, gathered.offset() + copy.flat_offset)};
}

// Where a copy-out reads: the rows of a padded shard come before its padding.
std::int64_t source_offset(const layout::ShardedParameter& cut, const layout::ShardCopy& copy) {
  if (!defect_armed(Defect::shard_padding_leaked)) [[likely]]
    return copy.flat_offset;
  const Dims padded = layout::padded_shard_sizes(cut);
  const std::int64_t num_padding_rows = padded[cut.dim] - copy.length;
  return copy.flat_offset + bounded_product(num_padding_rows, contiguous_strides(padded)[cut.dim]);
}

}  // namespace

void copy_out(const Tensor& full, const Tensor& gathered, const layout::ShardedParameter& cut,
              const layout::FlatShards& flat, std::size_t index) {
  for (layout::ShardCopy copy : layout::shard_copies(cut, flat, index)) {
    copy.flat_offset = source_offset(cut, copy);
    const Sides sides = sides_of(full, gathered, cut, copy);
    raw::copy_(sides.full, sides.flat);
  }
}

void copy_in(const Tensor& gathered, const Tensor& full, const layout::ShardedParameter& cut,
             const layout::FlatShards& flat, std::size_t index) {
  for (const layout::ShardCopy& copy : layout::shard_copies(cut, flat, index)) {
    const Sides sides = sides_of(full, gathered, cut, copy);
    raw::copy_(sides.flat, sides.full);
  }
}

Tensor typed_view(const Tensor& flat, const Dims& sizes, DType dtype, std::int64_t offset_bytes) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = flat.storage();
  impl->sizes = sizes;
  impl->strides = contiguous_strides(sizes);
  impl->dtype = dtype;
  const std::int64_t begin = bounded_product(flat.offset(), static_cast<std::int64_t>(size_of(flat.dtype())));
  impl->offset = (begin + offset_bytes) / static_cast<std::int64_t>(size_of(dtype));
  return Tensor(std::move(impl));
}

void zero_padding(const Tensor& gathered, const layout::ShardedParameter& cut, const layout::FlatShards& flat,
                  std::size_t index) {
  const Dims padded = layout::padded_shard_sizes(cut);
  const std::int64_t elements = num_elements(padded);
  for (int number = 0; number < cut.num_shards; ++number) {
    const std::int64_t length = layout::chunk(cut.sizes[cut.dim], cut.num_shards, number).length;
    if (length == padded[cut.dim] || elements == 0) continue;
    const std::int64_t offset = bounded_product(flat.per_rank, number) + flat.offsets[index];
    const Tensor shard = as_strided(gathered, padded, contiguous_strides(padded), gathered.offset() + offset);
    raw::zero_(slice(shard, cut.dim, length, padded[cut.dim]));
  }
}

}  // namespace lockstep::parallel
