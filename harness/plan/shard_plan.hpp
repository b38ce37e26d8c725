// The collectives of all groups that fully_shard and flat_shard made, computed from events and independently of the
// engine. Each group is a small state machine:
//
//   state                 holds                                    a forward or backward that needs the group
//   sharded               its shard of each parameter              all-gathers over the shard axis
//   prefetched            an all-gather was issued, not yet used   uses it, unless the shards have changed
//   sharded_post_forward  shards among n consecutive ranks         all-gathers among these ranks
//   unsharded             the full parameters                      nothing, unless the shards have changed
//
// A group is unsharded before forward and backward of its modules and resharded afterwards as its options say. It
// reduces the gradients of its parameters once per backward. A recomputation unshards a group that is not in its own
// backward yet; the group stays unsharded for that backward.
//
// Order of the collectives:
// - A forward all-gathers its group, then the groups of its prefetch list. When it ends, it is appended to the order of
//   forwards. Recomputations are not.
// - A backward that reaches a group all-gathers it, then prefetches: the groups of its prefetch list, or else the group
//   whose forward was before the group's own last one.
// - A group that backward leaves is reduced: first partial gradients of tensor parallelism, then over the shard axis,
//   then over the replicate axis. Parameters that this backward will reach again wait.
// - The end of a backward reduces the rest: the root, then the groups below in the order of their modules.
//
// A group of flat_shard is a unit (flat_plan.hpp has its differences). It is gathered and reduced as one flat
// parameter.
// - A unit that is not sharded makes no all-gather and no reduce-scatter.
// - A unit is reduced as a whole when no gradient of it is awaited and it has one. It is not reduced in parts.
// - The prefetch of a backward comes before its computation, or after its reshard, or not at all. It leaves out a unit
//   whose outputs required no gradient, and one that backward has passed. The end of a backward prefetches nothing.
// - With forward_prefetch, a forward gathers the unit that followed its own in the first forward, unless that unit has
//   run in this forward.
// - The root of units has no groups below a replicated module. They have roots of their own.
//
// After a forward that failed, the groups that it unsharded stay unsharded. The next forward of the root, or of a group
// that runs alone, resets everything else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/plan/facts.hpp"
#include "harness/plan/flat_plan.hpp"
#include "harness/plan/replicate_plan.hpp"

namespace lockstep::plan {

// reshard_after_forward.
struct Reshard {
  enum class Kind { automatic, yes, no, among } kind = Kind::automatic;  // automatic: yes
  int ranks = 0;  // among: the number of ranks that the parameters stay sharded over
};

struct ShardChoices {
  std::string owner;
  Axis shard;
  std::optional<Axis> replicate;
  Reshard reshard_after_forward;
  std::optional<DType> param, reduce;  // of the mixed precision policy
  std::map<TensorId, int> dims;        // the sharded tensor dim, for parameters where it is not 0
  // Parameters whose gradients are all partial sums over an axis of tensor parallelism. Each is reduced by one
  // all_reduce before the group reduces it.
  std::map<TensorId, Axis> partial_gradients{};
  std::optional<FlatChoices> flat{};  // of a unit of flat_shard
};

// Flags to set; empty members stay as they are.
struct FlagChange {
  std::optional<bool> requires_gradient_sync, requires_all_reduce, is_last_backward, reshard_after_backward;
  std::optional<Reshard> reshard_after_forward;
};

class ShardPlan {
 public:
  // `awaited`: the parameters that the current backward will reach.
  ShardPlan(const Facts& facts, const std::set<TensorId>& awaited, IssueCollective issue)
      : facts_(facts), awaited_(awaited), issue_(std::move(issue)) {}

  // Adds one group of these modules and parameters.
  void add_group(const std::vector<ModuleId>& modules, const std::vector<TensorId>& parameters, ShardChoices choices);
  bool has(ModuleId module) const { return group_of_.contains(module); }
  bool is_flat(ModuleId module) const { return has(module) && groups_[number(module)].choices.flat.has_value(); }
  void note_replicated(ModuleId module) { replicated_.insert(module); }
  bool owns(TensorId parameter) const { return owner_of_.contains(parameter); }
  void change(ModuleId module, const FlagChange& flags);
  // A use of a parameter of a group adds to its next gradient: a partial sum over the axis, or a full gradient.
  void add_to_gradient(TensorId parameter, const std::optional<Axis>& partial_over);
  // A tensor that an all-gather extension sends instead of the shard of a parameter.
  struct GatherInput {
    std::int64_t bytes = 0;  // of one rank
    DType dtype = DType::float32;
  };
  void set_gather_inputs(TensorId parameter, std::vector<GatherInput> sent);
  // The sizes of one rank's shard with padding.
  Dims padded_shard_sizes(TensorId parameter) const;
  // The dtype of the full parameter in forward and backward.
  DType compute_type(TensorId parameter) const;
  int dim_of(TensorId parameter) const;  // the sharded tensor dim
  // The owner of the collectives of its group.
  bool has_owner(const std::string& owner) const;
  const std::string& owner(TensorId parameter) const { return groups_[owner_of_.at(parameter)].choices.owner; }
  // The tensor in the slots of a parameter: the local shard, the post-forward shard, or the full parameter.
  enum class SlotTensor { local_shard, post_forward_shard, full };
  SlotTensor slot_tensor(TensorId parameter) const;
  bool is_unsharded(TensorId parameter) const;  // whether the full parameter is in memory
  // Whether the last all-gather of a parameter was one of post-forward shards, and no reshard has followed.
  bool is_from_post_forward_shards(TensorId parameter) const;
  // The number of ranks that hold a parameter together in the post-forward state.
  int num_post_forward_ranks(TensorId parameter) const;
  // The parameters whose gradients were reduced since the last call, in the order of the reductions.
  std::vector<TensorId> take_reduced() { return std::exchange(reduced_, {}); }
  // Whether a forward of this module moves its inputs to the device of the group: the root does, and the group whose
  // forward was called from outside of all groups.
  bool moves_inputs(ModuleId module) const;
  bool is_root(ModuleId module) const { return groups_[number(module)].is_root; }
  void set_forward_prefetch(ModuleId module, const std::vector<ModuleId>& next);
  void set_backward_prefetch(ModuleId module, const std::vector<ModuleId>& next);

  // The modules of the group of this module; none if it has no group.
  std::vector<ModuleId> modules_of_group(ModuleId module) const;

  // ---- events of modules with a group ----
  // A call begins and ends; `in_backward`: of a recomputation or a hook. `call`: the number of the outermost call.
  // Return whether backward must be reported at the inputs (enter) or outputs (leave) of the call. A group of several
  // modules needs the inputs of the first one entered and the outputs of all.
  bool enter(ModuleId module, bool in_backward, std::uint64_t call);
  bool leave(ModuleId module, bool in_backward, bool recording);
  void backward_reaches(ModuleId module);
  void backward_leaves(ModuleId module);
  void gradient(TensorId parameter);
  // A frozen parameter of a unit gets no gradient. Gradients that were kept back wait until it is thawed.
  void note_frozen(TensorId parameter, bool is_frozen);
  // Whether a backward without synchronization has kept back a gradient of the parameter. zero_grad drops that of a
  // unit.
  bool keeps_back(TensorId parameter) const { return groups_[owner_of_.at(parameter)].unreduced.contains(parameter); }
  void forget_kept_back(TensorId parameter) { groups_[owner_of_.at(parameter)].unreduced.erase(parameter); }
  // The number of the root that the group belongs to; -1 before its first forward.
  int root_of(ModuleId module) const { return groups_[number(module)].context; }
  // Ends a backward for the groups of one root.
  void end_backward(int root);

  // ---- calls by the user ----
  void unshard(ModuleId module, bool async);
  void wait_for_unshard(ModuleId module);
  void reshard(ModuleId module);
  // The full parameters of the units below a module, for a while. Each unit reshards. Then each one that is sharded
  // makes an all-gather in the type of its shard and, with gradients, an all_reduce that agrees on which parameters
  // have one and an all-gather of these.
  struct SummonedGradients {
    bool compute_type = false;        // of the gradients, instead of the type of the shard
    bool original_parameters = true;  // a gradient per parameter, not one per unit
  };
  void summon(ModuleId module, const std::optional<SummonedGradients>& gradients);
  // One all-gather of a flat parameter in this type; the states of the unit stay. Nothing if the unit does not shard.
  void gather_flat(ModuleId unit, DType type);
  // The axis that shards a unit; none if it does not shard.
  std::optional<Axis> shard_axis_of_unit(ModuleId unit) const;
  void swap(ShardPlan& other);
  bool empty() const { return groups_.empty(); }

 private:
  enum class State { sharded, prefetched, sharded_post_forward, unsharded };
  // Gradients of full parameters, with the axis of tensor parallelism over which one is a partial sum.
  using FullGradients = std::map<TensorId, std::optional<Axis>>;
  struct Group {
    std::vector<ModuleId> modules;
    std::vector<TensorId> parameters;
    ShardChoices choices;
    FlatLayout flat;  // of a unit
    State state = State::sharded;
    bool shows_shards = false;                          // an unsharded unit, after an evaluation or a backward
    bool from_post_forward = false;                     // the last all-gather was among the ranks of that state
    std::map<TensorId, std::vector<GatherInput>> sent;  // of parameters with an extension
    std::map<TensorId, std::uint64_t> gathered;         // versions of the shards at the last all-gather
    int context = -1;                                   // set by the first forward of its root
    bool is_root = false;
    bool sync = true, all_reduce = true, last_backward = true, reshard_after_backward = true;
    std::vector<std::size_t> forward_prefetch;
    std::vector<std::size_t> backward_prefetch;  // empty: the group before in the forward
    // of the current forward
    std::set<ModuleId> entered;  // modules of the group that this call entered and left
    std::set<ModuleId> left;
    std::vector<std::size_t> positions;  // of its forwards in Context::forward_order that no backward has used
    std::set<TensorId> frozen;           // of a unit
    // of the current backward
    bool in_backward = false;
    FullGradients arriving;      // of the uses that backward has passed
    FullGradients fresh;         // of this backward
    FullGradients unreduced;     // of backwards without synchronization
    std::set<TensorId> partial;  // parameters reduced over the shard axis but not over the replicate axis
  };

  // The shared state of the groups below one root.
  struct Context {
    std::size_t root = 0;
    std::vector<std::size_t> groups;         // in the order of their modules, parents first
    std::vector<std::size_t> forward_order;  // groups in the order in which their forwards ended
    std::optional<std::size_t> outermost;    // the group whose forward was called from outside, while it runs
    std::uint64_t call = 0;                  // the outermost call in which that forward runs
    std::vector<std::size_t> first_forward;  // groups in the order in which the first forward entered them
    bool first_forward_ended = false;
    std::set<std::size_t> ran;  // groups that the current forward has entered
  };

  std::size_t number(ModuleId module) const { return group_of_.at(module); }
  Context& context_of(std::size_t group);
  void make_context(std::size_t root);
  std::vector<ModuleId> modules_below(const Group& root) const;
  void begin_outermost(std::size_t group, std::uint64_t call);
  bool is_stale(const Group& group) const;
  void all_gather(std::size_t number, bool prefetch = false);
  void reshard_after_forward(Group& group);
  void leave_backward(Group& group, bool at_end);
  bool reshards_after_backward(const Group& group) const;
  bool awaits_gradients(const Group& group) const;
  void prefetch_previous(std::size_t number);
  void prefetch_next(std::size_t number);
  void reduce(Group& group, bool at_end);
  FullGradients take_fresh(Group& group);
  void reduce_unit(Group& group, bool at_end);
  std::int64_t padded_bytes(const Group& group, const std::set<TensorId>& tensors, bool reduced) const;
  std::int64_t gathered_bytes(const Group& group) const;
  void issue(const Group& group, const char* operation, const Axis& axis, std::int64_t bytes);
  void issue(const std::string& owner, const char* operation, const Axis& axis, std::int64_t bytes, const char* family);
  DType reduced_type(const Group& group, TensorId parameter) const;
  void reduce_partial(const std::string& owner, TensorId parameter, DType type, const Axis& axis);
  DType gradient_type(const Group& group, TensorId parameter) const;

  const Facts& facts_;
  const std::set<TensorId>& awaited_;
  IssueCollective issue_;
  std::vector<Group> groups_;
  std::vector<Context> contexts_;
  std::map<ModuleId, std::size_t> group_of_;
  std::map<TensorId, std::size_t> owner_of_;
  std::vector<TensorId> reduced_;
  std::set<ModuleId> replicated_;  // modules that replicate was applied to
};

}  // namespace lockstep::plan
