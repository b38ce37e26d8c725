#include "engine/parallel/shard_copies.hpp"

#include <memory>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/layout/placement.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

// The same box on both sides, with the parts as a dim of their own before the dim that is cut.
struct Sides {
  Tensor full, flat;
};
Sides sides_of(const Tensor& full, const Tensor& gathered, const layout::CutParameter& cut,
               const layout::ShardCopy& copy) {
  const int dim = cut.dim;
  const Dims part = layout::padded_part_sizes(cut);
  Dims sizes = part;
  sizes[dim] = copy.length;
  Dims full_strides = full.strides(), flat_strides = contiguous_strides(part);
  const std::int64_t full_offset = full.offset() + bounded_product(copy.begin, full_strides[dim]);
  const std::int64_t step = bounded_product(full_strides[dim], copy.length);
  sizes.insert(dim, copy.num_parts);
  full_strides.insert(dim, step);
  flat_strides.insert(dim, copy.flat_stride);
  return {as_strided(full, sizes, full_strides, full_offset),
          as_strided(gathered, sizes, flat_strides, gathered.offset() + copy.flat_offset)};
}

}  // namespace

void copy_out(const Tensor& full, const Tensor& gathered, const layout::CutParameter& cut,
              const layout::FlatShards& flat, std::size_t index) {
  for (layout::ShardCopy copy : layout::shard_copies(cut, flat, index)) {
    if (defect_armed(Defect::shard_padding_leaked)) [[unlikely]] {
      const Dims part = layout::padded_part_sizes(cut);
      copy.flat_offset += bounded_product(part[cut.dim] - copy.length, contiguous_strides(part)[cut.dim]);
    }
    const Sides sides = sides_of(full, gathered, cut, copy);
    raw::copy_(sides.full, sides.flat);
  }
}

void copy_in(const Tensor& gathered, const Tensor& full, const layout::CutParameter& cut,
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

void zero_padding(const Tensor& gathered, const layout::CutParameter& cut, const layout::FlatShards& flat,
                  std::size_t index) {
  const Dims part = layout::padded_part_sizes(cut);
  const std::int64_t elements = num_elements(part);
  for (int number = 0; number < cut.parts; ++number) {
    const std::int64_t length = layout::chunk(cut.sizes[cut.dim], cut.parts, number).length;
    if (length == part[cut.dim] || elements == 0) continue;
    const std::int64_t offset = bounded_product(flat.per_rank, number / flat.parts_per_rank) + flat.offsets[index] +
                                bounded_product(elements, number % flat.parts_per_rank);
    const Tensor padded = as_strided(gathered, part, contiguous_strides(part), gathered.offset() + offset);
    raw::zero_(slice(padded, cut.dim, length, part[cut.dim]));
  }
}

}  // namespace lockstep::parallel
