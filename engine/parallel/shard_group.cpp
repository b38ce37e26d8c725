// The states of a group and how it reshards.
#include "engine/parallel/shard_group.hpp"

#include <exception>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/events.hpp"
#include "engine/tensor/storage_state.hpp"

namespace lockstep::parallel {

const char* name_of(GroupState state) {
  static constexpr const char* names[] = {"sharded", "sharded_post_forward", "unsharding", "unsharded"};
  return names[static_cast<int>(state)];
}

ReshardAfterForward normalized(ReshardAfterForward how, int num_shards) {
  if (how.kind != ReshardAfterForward::Kind::among) return how;
  if (how.ranks < 1 || num_shards % how.ranks != 0)
    throw Error(
        str("If passing reshard_after_forward as an int, it should be a factor of ", num_shards, ", not ", how.ranks),
        "give a number that divides the ranks of the shard axis, or true or false");
  if (how.ranks == 1) return ReshardAfterForward::of(false);
  if (how.ranks == num_shards) return ReshardAfterForward::of(true);
  return how;
}

ShardGroup::ShardGroup(std::shared_ptr<GroupShards> shards)
    : context(std::make_shared<ShardContext>()),
      shards_(std::move(shards)),
      reshard_after_forward_(shards_->settings().reshard_after_forward) {
  constexpr std::array gathers = {device::Role::all_gather};
  if (reshard_after_forward_.kind == ReshardAfterForward::Kind::among)
    comm::prepare(kept_group(reshard_after_forward_.ranks), settings().device, gathers);
}

ShardGroup::~ShardGroup() {
  try {
    for (std::size_t i = 0; i < shards_->num_parameters(); ++i)
      if (const Tensor& leaf = shards_->parameter(i).leaf; leaf.defined() && !leaf.storage()->has_memory())
        leaf.storage()->state = state_model_dropped;
    if (state() == GroupState::unsharding) free_unused_gather();
    wait_for_reduction();
  } catch (const std::exception&) {
    // A collective that has failed writes nothing any more.
  }
}

void ShardGroup::move_to(Buffers next) {
  using enum GroupState;
  const GroupState from = state(), to = static_cast<GroupState>(next.index());
  const bool allowed = (to == unsharding && (from == sharded || from == sharded_post_forward)) ||
                       (to == unsharded && from == unsharding) || (to == sharded_post_forward && from == unsharded) ||
                       to == sharded;
  LOCKSTEP_CHECK(allowed, "group ", owner(), " cannot go from ", name_of(from), " to ", name_of(to));
  buffers_ = std::move(next);
}

std::vector<std::string> ShardGroup::names_on_meta() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shards_->num_parameters(); ++i) {
    const UnshardedParameter& parameter = std::as_const(*shards_).parameter(i);
    if (const Tensor& now = parameter.slots.front().get().tensor; now.defined() && now.is_meta())
      names.push_back(owner() + "." + parameter.name);
  }
  return names;
}

// ---- staleness ----
bool ShardGroup::holds_stale_values() const {
  if (defect_armed(Defect::shard_stale_after_evaluation)) [[unlikely]]
    return false;
  return state() != GroupState::sharded && shards_->shards_changed();
}

// ---- shards of an unsharded group ----
bool ShardGroup::shows_shards() const {
  const Unsharded* unsharded = std::get_if<Unsharded>(&buffers_);
  return unsharded && unsharded->shows_shards;
}

void ShardGroup::show_shards_until_next_use() {
  Unsharded* const unsharded = std::get_if<Unsharded>(&buffers_);
  // Where they are shown, a tensor may have been assigned to a slot. The next use adopts it.
  if (unsharded && !unsharded->shows_shards) unsharded->shows_shards = shards_->show_shards();
}

// ---- reshard ----
void ShardGroup::reshard() {
  if (state() == GroupState::sharded) return;
  if (shows_shards()) adopt_slots();
  if (state() == GroupState::unsharding) return drop_unused_gather();
  note_event(EventKind::reshard, owner(), settings().module);
  if (std::optional<UsedMemory> memory = shards_->install_shards()) context->used.push_back(std::move(*memory));
  if (!context->in_forward() && !in_backward()) context->free_used(ShardStreams(settings().device), 0);
  if (settings().max_gathers_in_flight > 0)
    context->freed.push_back(device::current_stream(settings().device).record());
  move_to(Sharded{});
}

bool ShardGroup::reshards_after_backward() const {
  const bool stays = settings().stays_unsharded_without_sync && !defect_armed(Defect::flat_reshards_without_sync);
  return reshard_after_backward && (requires_gradient_sync || !stays);
}

bool ShardGroup::reshards_after_forward() const {
  if (reshard_after_forward_.kind == ReshardAfterForward::Kind::no)
    return is_root ? defect_armed(Defect::shard_root_resharded) : defect_armed(Defect::shard_reshard_too_often);
  return !defect_armed(Defect::shard_reshard_forgotten);
}

void ShardGroup::reshard_after_forward() {
  if (state() != GroupState::unsharded || !reshards_after_forward()) return;
  const ReshardAfterForward& how = reshard_after_forward_;
  if (how.kind != ReshardAfterForward::Kind::among || how.ranks <= 1 || how.ranks >= settings().mesh.num_shards())
    return reshard();
  note_event(EventKind::reshard, owner(), settings().module);
  move_to(shards_->install_kept(how.ranks));
}

}  // namespace lockstep::parallel
