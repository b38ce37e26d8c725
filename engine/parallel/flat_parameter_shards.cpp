// The shard of a flat parameter, the tensors in the slots, and the all-gather.
#include "engine/parallel/flat_parameter_shards.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

constexpr std::int64_t alignment_bytes = 16;  // of each parameter in a flat parameter of original parameters

Tensor flattened(const Tensor& local) { return view(local, {-1}); }

Tensor with_grad_of(Tensor made, bool requires_grad, const std::string& name) {
  made.set_name(name);
  if (requires_grad) set_requires_grad(made, true);
  return made;
}

// The name below the model, as parameters have it. A shared parameter may have the name of another place.
std::string name_of_shard(const std::string& owner, const std::vector<CollectedParameter>& parameters) {
  for (const CollectedParameter& one : parameters) {
    const std::string& known = one.tensor.name();
    if (known == one.name || known.ends_with("." + one.name))
      return known.substr(0, known.size() - one.name.size()) + "_flat_param";
  }
  return owner + "._flat_param";
}

}  // namespace

FlatParameterShards::Parameter::Parameter(const CollectedParameter& from) : UnshardedParameter(from.name, from.slots) {
  inner_layout = from.tensor.layout();
}

bool FlatParameterShards::Parameter::requires_grad() const { return lockstep::requires_grad(decisive); }

// ---- the shard ----
FlatParameterShards::FlatParameterShards(GroupSettings settings, FlatSettings flat, const nn::ModulePtr& module,
                                         const std::vector<CollectedParameter>& parameters)
    : GroupShards(std::move(settings)), options_(flat) {
  const NoGrad no_grad;
  const DType type = parameters.front().tensor.dtype();
  const DType computed = this->settings().mixed_precision.param.value_or(type);
  std::vector<Dims> sizes;
  sizes.reserve(parameters.size());
  for (const CollectedParameter& one : parameters) sizes.push_back(local_tensor(one.tensor).sizes());
  const std::int64_t alignment =
      flat.original_parameters ? alignment_bytes / static_cast<std::int64_t>(size_of(computed)) : 1;
  flat_ = layout::make_flat_parameter(sizes, this->settings().mesh.num_shards(), alignment);
  shard_ = empty_shard(type, home());
  shard_.set_name(name_of_shard(this->settings().owner, parameters));
  if (lockstep::requires_grad(parameters.front().tensor) && !flat.original_parameters) set_requires_grad(shard_, true);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& full = parameters[i].tensor;
    Parameter& parameter = parameters_.emplace_back(parameters[i]);
    const layout::Stretch at = stretch(i);
    raw::copy_(slice(detach(shard_), 0, at.offset, at.offset + at.length),
               slice(flattened(local_tensor(detach(full))), 0, at.begin, at.begin + at.length));
    const bool trains = flat.original_parameters && lockstep::requires_grad(full);
    parameter.view = with_grad_of(view_of_shard(i), trains, full.name());
    parameter.decisive = flat.original_parameters ? parameter.view : shard_;
  }
  if (!flat.original_parameters) add_flat_slot(module);
  put_views();
}

namespace {

// The same memory. All-gather, to which it belongs, waits for compute when the last owner frees it. On another thread
// than that of the rank, the runtime frees it later, without a wait.
device::MemoryPtr freed_after_compute(device::MemoryPtr memory) {
  device::Memory* const address = memory.get();
  return device::MemoryPtr(
      address, [memory = std::move(memory), rank = RankContext::current_or_null()](device::Memory*) mutable {
        try {
          if (rank != nullptr && rank == RankContext::current_or_null())
            wait(WaitEdge::all_gather_for_unsharded_use, device::stream(memory->device(), device::Role::all_gather),
                 device::stream(memory->device(), device::Role::compute));
        } catch (const std::exception&) {
          // A stream that has failed reads nothing any more.
        }
        memory.reset();
      });
}

}  // namespace

FlatParameterShards::~FlatParameterShards() {
  if (!unsharded_.defined() || unsharded_.storage()->memory_ptr() == nullptr) return;
  unsharded_.storage()->attach(freed_after_compute(unsharded_.storage()->memory_ptr()));
}

// Zeros, also in the padding, which no copy writes.
Tensor FlatParameterShards::empty_shard(DType dtype, device::Device device) const {
  const device::PurposeScope purpose(device::Purpose::parameter, &settings().owner);
  if (!offloads() || !device::is_host(device)) return zeros({flat_.per_rank}, dtype, device);
  const Tensor shard = empty_offloaded(settings(), {flat_.per_rank}, dtype);
  raw::zero_(shard);
  return shard;
}

layout::Stretch FlatParameterShards::stretch(std::size_t index) const {
  layout::Stretch at = layout::stretch_of(flat_, index, settings().mesh.shard_rank());
  if (defect_armed(Defect::flat_wrong_stretch) && at.begin > 0) [[unlikely]]
    --at.begin;
  return at;
}

Tensor FlatParameterShards::view_of_shard(std::size_t index) const {
  const Tensor shard = detach(shard_);
  const layout::FlatEntry& entry = flat_.entries[index];
  if (settings().mesh.is_sharded()) {
    const layout::Stretch at = stretch(index);
    return slice(shard, 0, at.offset, at.offset + at.length);
  }
  const Tensor view = as_strided(shard, entry.sizes, contiguous_strides(entry.sizes), entry.offset);
  const LayoutPtr& inner = parameters_[index].inner_layout;
  return inner ? make_sharded(view, inner) : view;
}

void FlatParameterShards::add_flat_slot(const nn::ModulePtr& module) {
  flat_slot_ = {module, module->parameters.size()};
  module->parameters.push_back({"_flat_param", shard_, shard_});
  for (const Parameter& parameter : parameters_)
    for (const ParameterSlotRef& slot : parameter.slots) slot.get().listed = false;
}

const Tensor& FlatParameterShards::trained(std::size_t index) const {
  return options_.original_parameters ? parameters_[index].view : shard_;
}

// ---- slots ----
void FlatParameterShards::put_views() {
  for (const Parameter& parameter : parameters_)
    for (const ParameterSlotRef& ref : parameter.slots) {
      nn::ParameterSlot& slot = ref.get();
      slot.tensor = parameter.view;
      slot.sharded = parameter.view;
    }
  if (options_.original_parameters) return;
  nn::ParameterSlot& slot = flat_slot_.get();
  slot.tensor = slot.sharded = shard_;
}

void FlatParameterShards::put_leaves() {
  for (const Parameter& parameter : parameters_) {
    if (lockstep::requires_grad(parameter.leaf) != parameter.requires_grad())
      set_requires_grad(parameter.leaf, parameter.requires_grad());
    for (const ParameterSlotRef& ref : parameter.slots) {
      nn::ParameterSlot& slot = ref.get();
      slot.tensor = parameter.leaf;
      slot.sharded = parameter.view;
    }
  }
}

// Whether the slot holds the view, and the view is still a part of the shard.
bool FlatParameterShards::is_in_place(const Parameter& parameter, const Tensor& now) const {
  return now.same_as(parameter.view) && now.storage() == shard_.storage();
}

void FlatParameterShards::check_written(const std::string& name, const Dims& sizes, const Tensor& now) const {
  const std::string where = str("flat_shard: `", name, "` of ", settings().owner);
  if (!now.defined() || now.sizes() != sizes)
    throw Error(str("Cannot writeback when the parameter shape changes: ", where, " is expected to have sizes ",
                    to_text(sizes), " but got ", now.defined() ? describe_sharded(now) : "nothing"),
                "write to the local stretch, or to the full parameter within summon_full_parameters");
  if (!(now.device() == home()))
    throw Error(
        str(offloads() ? "FSDP parameters should be materialized on CPU when enabling CPU offloading: " : "", where,
            " is on ", device::to_text(now.device()), ", the unit keeps its shard on ", device::to_text(home())),
        offloads() ? "with offload, parameters and loaded values stay on the cpu"
                   : "move the module there before the first forward");
}

// Without original parameters: the tensor in the slot of the chunk is the shard from now on.
void FlatParameterShards::adopt_chunk() {
  const Tensor now = flat_slot_.get().tensor;
  if (now.same_as(shard_) && parameters_.front().view.storage() == shard_.storage()) return;
  check_written("_flat_param", {flat_.per_rank}, now);
  shard_ = now;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].view = view_of_shard(i);
    parameters_[i].decisive = shard_;
  }
  put_views();
}

void FlatParameterShards::refuse_replaced_shards() {
  if (options_.original_parameters || flat_slot_.get().tensor.same_as(shard_)) return;
  const Tensor put = std::exchange(flat_slot_.get().tensor, shard_);
  throw Error(str("`_flat_param` of ", settings().owner, " was replaced by ",
                  put.defined() ? describe_sharded(put) : "nothing", " while it was unsharded"),
              "reshard the module, then assign a tensor that is sharded as the parameter");
}

// A tensor in a later slot of a shared parameter would disappear, because the first slot decides. The slot holds the
// view again.
void FlatParameterShards::refuse_changed_tie(const Parameter& parameter, const Tensor& now) const {
  for (const ParameterSlotRef& slot : parameter.slots) {
    if (slot.get().tensor.same_as(now) || slot.get().tensor.same_as(parameter.view)) continue;
    const Tensor put = std::exchange(slot.get().tensor, parameter.view);
    throw Error(str("Changing shared parameters is not supported: `", parameter.name, "` of ", settings().owner,
                    " has several places, and one of them got ", put.defined() ? describe_sharded(put) : "nothing"),
                "assign the tensor to the first place of the parameter");
  }
}

void FlatParameterShards::adopt_slots() {
  if (shows_full_)
    throw Error(str("flat_shard: the full parameters of ", settings().owner, " are summoned"),
                "leave summon_full_parameters before forward, and before a state dict is loaded");
  if (!options_.original_parameters) return adopt_chunk();
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& now = parameters_[i].slots.front().get().tensor;
    refuse_changed_tie(parameters_[i], now);
    if (is_in_place(parameters_[i], now)) continue;
    check_written(parameters_[i].name, parameters_[i].view.sizes(), now);
    changed.push_back(i);
  }
  if (!changed.empty()) write_back(changed);
}

// The values of the changed slots go into the shard. A change of type (a cast of the module) makes a new shard.
void FlatParameterShards::write_back(const std::vector<std::size_t>& changed) {
  const NoGrad no_grad;
  const DType type = parameters_[changed.front()].slots.front().get().tensor.dtype();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const DType own = parameters_[i].slots.front().get().tensor.dtype();
    if (own != type)
      throw Error(str("FSDP expects uniform original parameter dtype: the parameters of ", settings().owner,
                      " have the types ", name_of(type), " (", parameters_[changed.front()].name, ") and ",
                      name_of(own), " (", parameters_[i].name, ")"),
                  "a unit has one type: cast them all");
  }
  if (type != shard_.dtype()) {
    const std::string name = shard_.name();
    shard_ = empty_shard(type, home());
    shard_.set_name(name);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const Tensor now = parameter.slots.front().get().tensor;
    if (is_in_place(parameter, now)) continue;
    const Tensor to = view_of_shard(i);
    if (!defect_armed(Defect::flat_writeback_lost)) raw::copy_(local_tensor(to), local_tensor(detach(now)));
    nn::swap_data(parameter.view, to);
  }
  // This may be within a forward, whose root has waited for the optimizer before.
  wait(WaitEdge::copy_in_for_shard_writes, device::stream(settings().device, device::Role::copy_in),
       device::current_stream(home()));
  put_views();
}

void FlatParameterShards::note_step_elsewhere() { detach(shard_).bump_version(); }

bool FlatParameterShards::shards_changed() const { return gathered_ != version_of(shard_); }

// ---- all-gather ----
// The shard on the device of the group in the type of the computation: itself if it is.
Tensor FlatParameterShards::to_compute(const Tensor& shard) const {
  Tensor made = detach(shard);
  if (offloads()) {
    const Tensor on_device = empty(shard.sizes(), shard.dtype(), settings().device);
    if (on_device.num_elements() > 0)
      device::copy_bytes(device::current_stream(settings().device), write(on_device), read(shard));
    made = on_device;
  }
  return made.dtype() == compute_type() ? made : raw::cast(made, compute_type());
}

Tensor FlatParameterShards::gather_input(const KeptShards*) {
  gathered_ = version_of(shard_);
  return settings().mesh.is_sharded() ? to_compute(shard_) : detach(shard_);
}

// The memory of the unsharded parameters. It belongs to all-gather, which waits for compute before it frees it.
Tensor FlatParameterShards::gather_output(const Tensor& input, int num_ranks) {
  const device::PurposeScope purpose(device::Purpose::gathered, &settings().owner);
  if (!settings().mesh.is_sharded()) return to_compute(input);
  return empty({checked_multiply(input.size(0), num_ranks, "all_gather of a flat parameter")}, input.dtype(),
               settings().device);
}

void FlatParameterShards::make_leaves(const Tensor& gathered) {
  if (unsharded_.defined()) mark_replaced(unsharded_, gathered.dtype());
  auto impl = std::make_shared<TensorImpl>();
  impl->sizes = {flat_.padded()};
  impl->strides = {1};
  impl->dtype = gathered.dtype();
  const std::size_t bytes = checked_bytes(impl->sizes, size_of(gathered.dtype()), "unshard");
  impl->storage = std::make_shared<Storage>(gathered.device(), bytes, nullptr);
  impl->storage->owner = settings().owner + "._flat_param";
  unsharded_ = Tensor(std::move(impl));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const layout::FlatEntry& entry = flat_.entries[i];
    const Tensor local = as_strided(unsharded_, entry.sizes, contiguous_strides(entry.sizes), entry.offset);
    parameter.leaf = parameter.inner_layout ? make_sharded(local, parameter.inner_layout) : local;
    parameter.leaf.set_name(parameter.view.name());
    parameter.is_new_leaf = true;
  }
}

bool FlatParameterShards::install_unsharded(const Tensor& gathered, int) {
  const bool changed = std::exchange(unsharded_from_, gathered_) != gathered_;
  if (!unsharded_.defined() || unsharded_.dtype() != gathered.dtype() || !(unsharded_.device() == gathered.device()))
    make_leaves(gathered);
  else if (changed && !defect_armed(Defect::flat_stale_leaves))
    unsharded_.bump_version();  // a backward through a graph that saved the old values is an error
  unsharded_.storage()->attach(gathered.storage()->memory_ptr());
  unsharded_.storage()->state = "gathered";
  put_leaves();
  return true;
}

bool FlatParameterShards::show_shards() {
  put_views();
  return true;
}

std::optional<UsedMemory> FlatParameterShards::install_shards() {
  std::optional<UsedMemory> memory;
  if (unsharded_.defined() && unsharded_.storage()->has_memory()) {
    memory = {unsharded_.storage()->memory_ptr(), device::current_stream(settings().device).record()};
    unsharded_.storage()->release();
    unsharded_.storage()->state = "sharded";
  }
  put_views();
  return memory;
}

KeptShards FlatParameterShards::install_kept(int) {
  throw InternalError("a flat parameter keeps no shards among fewer ranks");
}

}  // namespace lockstep::parallel
