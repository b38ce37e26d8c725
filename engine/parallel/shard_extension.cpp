// Gathers of groups that have parameters with an extension: what they send, one after the other in one flat buffer, and
// whole parameters of what came back.
//
//   rank 0: [w: values][w: scales][b part 0]   rank 1: [w: values][w: scales][b part 1]   ...
#include <algorithm>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/parallel/shard_group.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

constexpr std::int64_t alignment = 8;  // of the largest element

[[noreturn]] void refuse(const std::string& owner, const GatherSite& site, const std::string& what,
                         const std::string& remedy) {
  throw Error(str("extend_gather: `", site.parameter, "` of ", owner, ": ", what), remedy);
}

}  // namespace

bool ShardGroup::has_extensions() const {
  if (defect_armed(Defect::shard_extension_left_out)) [[unlikely]]
    return false;
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const ShardParameter& parameter) { return parameter.extension != nullptr; });
}

GatherSite ShardGroup::site_of(std::size_t index) const {
  const ShardMesh& mesh = settings_.mesh;
  const std::string& axis = mesh.mesh.shape().names()[static_cast<std::size_t>(mesh.shard_axis)];
  const layout::CutParameter& cut = cuts_[index];
  return {parameters_[index].name(),
          mesh.mesh.num_axes() == 1 ? mesh.mesh : mesh.mesh.slice({axis}),
          cut.sizes,
          cut.dim,
          layout::padded_part_sizes(cut),
          compute_type()};
}

// The part of this rank where the group computes, with zeros for what it has less than the first rank.
Tensor ShardGroup::padded_part(std::size_t index) const {
  Tensor part = local_tensor(parameters_[index].sharded());
  if (offloads() && part.num_elements() > 0) {
    const Tensor there = empty(part.sizes(), part.dtype(), settings_.device);
    device::copy_bytes(device::current_stream(settings_.device), write(there), read(raw::contiguous(part)));
    part = there;
  }
  const Dims sizes = layout::padded_part_sizes(cuts_[index]);
  if (part.sizes() == sizes && part.device() == settings_.device) return part;
  const Tensor padded = zeros(sizes, part.dtype(), settings_.device);
  if (part.num_elements() > 0) raw::copy_(slice(padded, cuts_[index].dim, 0, part.size(cuts_[index].dim)), part);
  return padded;
}

// The flat buffer to gather; what lies where in it stays in `sent_`.
Tensor ShardGroup::pack_extended() {
  sent_.clear();
  std::vector<std::vector<Tensor>> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    SentParameter& sent = sent_.emplace_back();
    if (!parameters_[i].extension) {
      all.push_back({raw::cast(padded_part(i), compute_type())});
      continue;
    }
    const GatherSite site = site_of(i);
    GatherInputs inputs = parameters_[i].extension->send(padded_part(i), site);
    if (inputs.tensors.empty())
      refuse(settings_.owner, site, "the extension sends nothing", "give at least one tensor to gather");
    for (Tensor& tensor : inputs.tensors) {
      if (!tensor.defined() || tensor.is_sharded() || !(tensor.device() == settings_.device))
        refuse(settings_.owner, site,
               str("the extension sends ", tensor.defined() ? describe_sharded(tensor) : "an undefined tensor"),
               str("give plain tensors on ", device::to_text(settings_.device)));
      tensor = raw::contiguous(tensor);
    }
    sent.metadata = std::move(inputs.metadata);
    all.push_back(std::move(inputs.tensors));
  }

  const DType first = all.front().front().dtype();
  const bool one_type = std::all_of(all.begin(), all.end(), [first](const std::vector<Tensor>& tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [first](const Tensor& t) { return t.dtype() == first; });
  });
  std::int64_t bytes = 0;
  const auto align = [&bytes, one_type] {
    if (!one_type) bytes = (bytes + alignment - 1) / alignment * alignment;
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const Tensor& tensor : all[i]) {
      align();
      sent_[i].tensors.push_back({tensor.sizes(), tensor.dtype(), bytes});
      bytes = checked_add(bytes, tensor.num_bytes(), "gather of extensions");
    }
  align();
  const DType type = one_type ? first : DType::boolean;
  const Tensor flat = empty({bytes / static_cast<std::int64_t>(size_of(type))}, type, settings_.device);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k < all[i].size(); ++k)
      raw::copy_(typed_view(flat, all[i][k].sizes(), all[i][k].dtype(), sent_[i].tensors[k].offset_bytes), all[i][k]);
  return flat;
}

// Parameter `index` of the gathered buffer into its memory.
void ShardGroup::unpack_extended(std::size_t index, const Tensor& gathered, const Tensor& memory) {
  const int num_ranks = settings_.mesh.num_shards();
  const std::int64_t bytes_per_rank = gathered.num_bytes() / num_ranks;
  const SentParameter& sent = sent_[index];
  if (!parameters_[index].extension) {
    const auto size = static_cast<std::int64_t>(size_of(compute_type()));
    layout::FlatShards flat;
    flat.num_ranks = num_ranks;
    flat.per_rank = bytes_per_rank / size;
    flat.offsets.assign(parameters_.size(), 0);
    flat.offsets[index] = sent.tensors.front().offset_bytes / size;
    const Tensor typed = typed_view(gathered, {gathered.num_bytes() / size}, compute_type(), 0);
    return copy_out(memory, typed, cuts_[index], flat, index);
  }
  std::vector<Tensor> of_ranks;
  for (const SentTensor& one : sent.tensors) {
    Dims sizes = one.sizes, strides = contiguous_strides(one.sizes);
    sizes.insert(0, num_ranks);
    strides.insert(0, bytes_per_rank / static_cast<std::int64_t>(size_of(one.dtype)));
    Dims joined = one.sizes;
    if (joined.empty())
      joined = {num_ranks};
    else
      joined[0] = checked_multiply(joined[0], num_ranks, "gather of an extension");
    const Tensor first = typed_view(gathered, one.sizes, one.dtype, one.offset_bytes);
    of_ranks.push_back(raw::reshape(as_strided(first, sizes, strides, first.offset()), joined));
  }
  const GatherSite site = site_of(index);
  Tensor whole = parameters_[index].extension->build(of_ranks, sent.metadata, site);
  Dims padded = site.sizes;
  padded[site.dim] = checked_multiply(site.part_sizes[site.dim], num_ranks, "gather of an extension");
  const bool fits = whole.defined() && !whole.is_sharded() && whole.device() == settings_.device &&
                    whole.dtype() == site.type && (whole.sizes() == site.sizes || whole.sizes() == padded);
  if (!fits)
    refuse(
        settings_.owner, site,
        str("the extension builds ", whole.defined() ? describe_sharded(whole) : "nothing", " for a parameter of ",
            to_text(site.sizes), " that the group computes with as ", name_of(site.type)),
        str("give the whole, ", to_text(site.sizes), " or ", to_text(padded), " with the padding of the last ranks"));
  if (whole.sizes() != site.sizes) whole = slice(whole, site.dim, 0, site.sizes[site.dim]);
  raw::copy_(memory, whole);
}

}  // namespace lockstep::parallel
