// All-gathers of groups with extended parameters. The flat buffer of a rank holds all tensors that its parameters send,
// one after the other:
//
//   rank 0: [w: values][w: scales][b shard 0]   rank 1: [w: values][w: scales][b shard 1]   ...
#include <algorithm>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/parallel/parameter_shards.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

constexpr std::int64_t alignment = 8;  // of the largest element

// The shards of this rank's groups.
struct Registered {
  explicit Registered(RankContext&) {}
  std::vector<std::weak_ptr<PerParameterShards>> entries;
};
Registered& registered() { return RankContext::current().service<Registered>(); }

[[noreturn]] void refuse(const std::string& owner, const GatherSite& site, const std::string& problem,
                         const std::string& remedy) {
  throw Error(str("extend_gather: `", site.parameter, "` of ", owner, ": ", problem), remedy);
}

}  // namespace

void register_shards(const std::shared_ptr<PerParameterShards>& shards) {
  std::vector<std::weak_ptr<PerParameterShards>>& entries = registered().entries;
  std::erase_if(entries, [](const auto& entry) { return entry.expired(); });
  entries.push_back(shards);
}

void extend_gather(const nn::ModulePtr& owner, std::size_t slot, GatherExtension extension) {
  const auto shared = std::make_shared<const GatherExtension>(std::move(extension));
  for (const auto& entry : registered().entries) {
    const auto shards = entry.lock();
    if (!shards) continue;
    for (ShardParameter& parameter : shards->parameters())
      for (const ParameterSlotRef& at : parameter.slots)
        if (at.slot == slot && at.owner.lock() == owner) {
          parameter.extension = shared;
          return;
        }
  }
  LOCKSTEP_CHECK(slot < owner->parameters.size(), owner->type(), " has no parameter ", slot);
  throw Error(
      str("extend_gather: no group of fully_shard holds `", owner->parameters[slot].name, "` of ", owner->type()),
      "apply fully_shard first");
}

bool PerParameterShards::has_extensions() const {
  if (defect_armed(Defect::shard_extension_left_out)) [[unlikely]]
    return false;
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const ShardParameter& parameter) { return parameter.extension != nullptr; });
}

GatherSite PerParameterShards::site_of(std::size_t index) const {
  const ShardMesh& mesh = settings().mesh;
  const std::string& axis = mesh.mesh.shape().names()[static_cast<std::size_t>(mesh.shard_axis)];
  const layout::ShardedParameter& cut = cuts_[index];
  return {parameters_[index].name,
          mesh.mesh.num_axes() == 1 ? mesh.mesh : mesh.mesh.slice({axis}),
          cut.sizes,
          cut.dim,
          layout::padded_shard_sizes(cut),
          compute_type()};
}

// ---- copy-in ----
// The shard of this rank on the device of the group, padded with zeros to the size of the first rank's shard.
Tensor PerParameterShards::padded_shard(std::size_t index) const {
  Tensor shard = local_tensor(parameters_[index].sharded());
  if (offloads() && shard.num_elements() > 0) {
    const Tensor on_device = empty(shard.sizes(), shard.dtype(), settings().device);
    device::copy_bytes(device::current_stream(settings().device), write(on_device), read(raw::contiguous(shard)));
    shard = on_device;
  }
  const Dims sizes = layout::padded_shard_sizes(cuts_[index]);
  if (shard.sizes() == sizes && shard.device() == settings().device) return shard;
  const Tensor padded = zeros(sizes, shard.dtype(), settings().device);
  const int dim = cuts_[index].dim;
  raw::copy_(slice(padded, dim, 0, shard.size(dim)), shard);
  return padded;
}

// The contiguous tensors that a parameter sends; the metadata of its extension goes to `sent_`.
std::vector<Tensor> PerParameterShards::tensors_to_send(std::size_t index) {
  const ShardParameter& parameter = parameters_[index];
  if (!parameter.extension) return {raw::cast(padded_shard(index), compute_type())};
  const GatherSite site = site_of(index);
  GatherInputs inputs = parameter.extension->send(padded_shard(index), site);
  if (inputs.tensors.empty())
    refuse(settings().owner, site, "the extension sends nothing", "give at least one tensor to gather");
  for (Tensor& tensor : inputs.tensors) {
    if (!tensor.defined() || tensor.is_sharded() || !(tensor.device() == settings().device))
      refuse(settings().owner, site,
             str("the extension sends ", tensor.defined() ? describe_sharded(tensor) : "an undefined tensor"),
             str("give plain tensors on ", device::to_text(settings().device)));
    tensor = raw::contiguous(tensor);
  }
  sent_[index].metadata = std::move(inputs.metadata);
  return std::move(inputs.tensors);
}

// The flat input. Tensors of one type make a buffer of that type; tensors of several types make a buffer of bytes, in
// which each tensor is aligned. `sent_` keeps the place of each tensor.
Tensor PerParameterShards::pack_extended() {
  sent_.assign(parameters_.size(), {});
  std::vector<std::vector<Tensor>> all;  // per parameter
  for (std::size_t i = 0; i < parameters_.size(); ++i) all.push_back(tensors_to_send(i));

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
  const Tensor flat = empty({bytes / static_cast<std::int64_t>(size_of(type))}, type, settings().device);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k < all[i].size(); ++k)
      raw::copy_(typed_view(flat, all[i][k].sizes(), all[i][k].dtype(), sent_[i].tensors[k].offset_bytes), all[i][k]);
  return flat;
}

// ---- copy-out ----
// Writes parameter `index` of the flat output to `memory`.
void PerParameterShards::unpack_extended(std::size_t index, const Tensor& gathered, const Tensor& memory) {
  const int num_ranks = settings().mesh.num_shards();
  const SentParameter& sent = sent_[index];
  if (!parameters_[index].extension) {
    const auto size = static_cast<std::int64_t>(size_of(compute_type()));
    layout::FlatShards flat;
    flat.num_ranks = num_ranks;
    flat.per_rank = gathered.num_bytes() / num_ranks / size;
    flat.offsets.resize(parameters_.size());
    flat.offsets[index] = sent.tensors.front().offset_bytes / size;
    const Tensor typed = typed_view(gathered, {gathered.num_bytes() / size}, compute_type(), 0);
    return copy_out(memory, typed, cuts_[index], flat, index);
  }
  const GatherSite site = site_of(index);
  Tensor full = parameters_[index].extension->build(gathered_tensors(index, gathered), sent.metadata, site);
  Dims padded = site.sizes;
  padded[site.dim] = checked_multiply(site.shard_sizes[site.dim], num_ranks, "gather of an extension");
  const bool fits = full.defined() && !full.is_sharded() && full.device() == settings().device &&
                    full.dtype() == site.type && (full.sizes() == site.sizes || full.sizes() == padded);
  if (!fits)
    refuse(settings().owner, site,
           str("the extension builds ", full.defined() ? describe_sharded(full) : "nothing", " for a parameter of ",
               to_text(site.sizes), " that the group computes with as ", name_of(site.type)),
           str("give the full parameter, ", to_text(site.sizes), " or ", to_text(padded),
               " with the padding of the last ranks"));
  if (full.sizes() != site.sizes) full = slice(full, site.dim, 0, site.sizes[site.dim]);
  raw::copy_(memory, full);
}

// Each tensor that the parameter sent, those of all ranks joined along dim 0.
std::vector<Tensor> PerParameterShards::gathered_tensors(std::size_t index, const Tensor& gathered) const {
  const int num_ranks = settings().mesh.num_shards();
  const std::int64_t bytes_per_rank = gathered.num_bytes() / num_ranks;
  std::vector<Tensor> all;
  for (const SentTensor& one : sent_[index].tensors) {
    Dims sizes = one.sizes, strides = contiguous_strides(one.sizes);
    sizes.insert(0, num_ranks);
    strides.insert(0, bytes_per_rank / static_cast<std::int64_t>(size_of(one.dtype)));
    Dims joined = one.sizes;
    if (joined.empty())
      joined = {num_ranks};
    else
      joined[0] = checked_multiply(joined[0], num_ranks, "gather of an extension");
    const Tensor first = typed_view(gathered, one.sizes, one.dtype, one.offset_bytes);
    all.push_back(raw::reshape(as_strided(first, sizes, strides, first.offset()), joined));
  }
  return all;
}

}  // namespace lockstep::parallel
