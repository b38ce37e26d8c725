// The hooks that a call of fully_shard or flat_shard leaves on its modules. They drive the group through forwards and
// backwards.
//
//   phase       begins when                                ends when
//   idle        at first, and after each use               a forward or backward begins
//   forward     a call enters the first of the modules     a call leaves the last of them
//   backward    backward reaches the outputs               backward has left the inputs, or has ended
//
// A forward in a backward is a recomputation. While the state is in its own backward, a recomputation changes nothing.
// Before that, a recomputation unshards the group and leaves it unsharded for its own backward, which follows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/parallel/contract.hpp"
#include "engine/parallel/shard_group.hpp"

namespace lockstep::parallel {

// A buffer of a unit of flat_shard.
struct UnitBuffer {
  std::weak_ptr<nn::Module> owner;
  std::size_t slot = 0;
  std::optional<DType> original;  // the type that it had when the unit was made; none without a tensor
};

struct StateSettings {
  MixedPrecision precision;
  bool casts_root_inputs = false;    // if this state is the root, to the compute type
  std::optional<DType> buffer_type;  // of the buffers, from the first forward on
  std::vector<UnitBuffer> buffers;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::before;
  bool forward_prefetch = false;  // of the group that followed in the first forward
  device::Device device;
  std::string owner;
  std::string_view api = fully_shard_name;
  std::weak_ptr<nn::Module> module{};  // the first of the modules, for events
};

class ShardState : public std::enable_shared_from_this<ShardState> {
 public:
  ShardState(std::vector<nn::ModulePtr> modules, StateSettings settings, std::shared_ptr<ShardGroup> group);

  // Null when the modules have no parameters of their own.
  const std::shared_ptr<ShardGroup>& group() const { return group_; }
  const std::string& owner() const { return settings_.owner; }
  const StateSettings& settings() const { return settings_; }
  bool is_root() const { return is_root_; }
  // Those that compute in another type than they were made with.
  const std::vector<UnitBuffer>& cast_buffers() const { return cast_buffers_; }
  std::shared_ptr<ShardContext> context;

  void pre_forward(nn::Inputs& inputs);
  void post_forward(const nn::Module& module, nn::Structure& outputs);
  // At the end of each backward: finishes a backward of the group that no gradient of an input has finished, and
  // reduces the remaining gradients.
  void finish_backward();
  // At the end of a last backward: drops unused all-gathers and waits for the reductions.
  void wait_at_end();

  std::vector<std::weak_ptr<ShardState>> forward_prefetch, backward_prefetch;
  void set_is_last_backward(bool value);

 private:
  enum class Phase { idle, forward, backward };
  void make_root();
  void enter_as_root();
  void leave_unfinished_forward();
  void move_inputs(nn::Inputs& inputs) const;
  void cast_inputs(nn::Inputs& inputs) const;
  void cast_outputs(nn::Structure& outputs) const;
  bool may_run_backward(const nn::Structure& outputs) const;
  void recover();
  void forget_backward();
  void leave_failed_backward();
  void cast_own_buffers();
  void watch_inputs(nn::Inputs& inputs);
  void watch_outputs(nn::Structure& outputs);
  void pre_backward();
  void post_backward(bool at_end = false);
  void queue_end_of_backward();
  void prefetch_previous();
  void prefetch_next();

  std::vector<std::weak_ptr<nn::Module>> modules_;
  StateSettings settings_;
  std::shared_ptr<ShardGroup> group_;
  Phase phase_ = Phase::idle;
  bool is_initialized_ = false;
  bool is_root_ = false;
  bool moves_inputs_ = true;  // as in its last forward: so does a recomputation, which has no root
  std::set<const nn::Module*> modules_to_run_;
  std::vector<UnitBuffer> cast_buffers_;
};

using ShardStatePtr = std::shared_ptr<ShardState>;
// Null when neither fully_shard nor flat_shard was applied to it.
ShardStatePtr shard_state_of(const nn::Module& module);

}  // namespace lockstep::parallel
