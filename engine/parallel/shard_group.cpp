// The states of a group and how it reshards.
#include "engine/parallel/shard_group.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/events.hpp"

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

ShardGroup::ShardGroup(GroupSettings settings, std::vector<ShardParameter> parameters)
    : context(std::make_shared<ShardContext>()), settings_(std::move(settings)), parameters_(std::move(parameters)) {
  for (const ShardParameter& parameter : parameters_) cuts_.push_back(parameter.cut());
}

ShardGroup::~ShardGroup() = default;

void ShardGroup::move_to(GroupState next) {
  using enum GroupState;
  const bool allowed = (next == unsharding && (state_ == sharded || state_ == sharded_post_forward)) ||
                       (next == unsharded && state_ == unsharding) ||
                       (next == sharded_post_forward && state_ == unsharded) || next == sharded;
  LOCKSTEP_CHECK(allowed, "group ", settings_.owner, " cannot go from ", name_of(state_), " to ", name_of(next));
  state_ = next;
}

// ---- types and devices ----
bool ShardGroup::offloads() const {
  return settings_.offload != Offload::none && settings_.device.kind != device::Kind::cpu;
}

DType ShardGroup::original_type() const { return parameters_.front().sharded().dtype(); }

DType ShardGroup::compute_type() const {
  if (defect_armed(Defect::shard_cast_left_out)) [[unlikely]]
    return original_type();
  return settings_.mixed_precision.param.value_or(original_type());
}

DType ShardGroup::reduce_type() const { return settings_.mixed_precision.reduce.value_or(compute_type()); }

std::vector<std::string> ShardGroup::names_on_meta() const {
  std::vector<std::string> names;
  for (const ShardParameter& parameter : parameters_)
    if (parameter.slots().front().get().tensor.is_meta()) names.push_back(settings_.owner + "." + parameter.name());
  return names;
}

void ShardGroup::adopt_slots() {
  for (ShardParameter& parameter : parameters_) parameter.adopt_slots();
  const device::Device at = offloads() ? device::Device{} : settings_.device;
  for (const ShardParameter& parameter : parameters_) {
    if (parameter.sharded().dtype() != original_type())
      throw Error(str("FSDP expects uniform original parameter dtype: the parameters of ", settings_.owner,
                      " have the types ", name_of(original_type()), " (", parameters_.front().name(), ") and ",
                      name_of(parameter.sharded().dtype()), " (", parameter.name(), ")"),
                  "a group has one type: cast them, or shard the modules apart");
    if (!(parameter.sharded().device() == at))
      throw Error(
          str(offloads() ? "FSDP parameters should be materialized on CPU when enabling CPU offloading: `"
                         : "fully_shard: `",
              parameter.name(), "` of ", settings_.owner, " is on ", device::to_text(parameter.sharded().device()),
              ", the group keeps its shards on ", device::to_text(at)),
          offloads() ? "with offload, parameters and loaded values stay on the cpu"
                     : "move the module there before the first forward");
  }
}

// ---- staleness ----
bool ShardGroup::shards_changed() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const ShardParameter& parameter) { return parameter.is_stale(); });
}

bool ShardGroup::holds_stale_values() const {
  if (defect_armed(Defect::shard_stale_after_evaluation)) [[unlikely]]
    return false;
  const bool holds_values = state_ == GroupState::unsharded || state_ == GroupState::sharded_post_forward;
  return holds_values && shards_changed();
}

// ---- reshard ----
void ShardGroup::reshard() {
  if (state_ == GroupState::sharded) return;
  if (state_ == GroupState::unsharding && gather_) return drop_unused_gather();
  note_event(EventKind::reshard, settings_.owner);
  for (ShardParameter& parameter : parameters_) {
    parameter.free_unsharded("sharded");
    parameter.put_sharded();
  }
  kept_ = {};
  gather_ranks_ = 0;
  move_to(GroupState::sharded);
}

void ShardGroup::set_reshard_after_forward(const ReshardAfterForward& value) {
  settings_.reshard_after_forward = value;
}

bool ShardGroup::reshards_after_forward() const {
  if (settings_.reshard_after_forward.kind == ReshardAfterForward::Kind::no)
    return is_root ? defect_armed(Defect::shard_root_resharded) : defect_armed(Defect::shard_reshard_too_often);
  return !defect_armed(Defect::shard_reshard_forgotten);
}

void ShardGroup::reshard_after_forward() {
  if (state_ != GroupState::unsharded || !reshards_after_forward()) return;
  if (const int ranks = ranks_to_keep(); ranks > 1 && ranks < settings_.mesh.num_shards())
    keep_shards(ranks);
  else
    reshard();
}

}  // namespace lockstep::parallel
