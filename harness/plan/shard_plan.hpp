// The collectives of all groups that fully_shard made, worked out from events: an independent reading of what it
// promises, as a small state machine a group.
//
//   state         holds                                  a forward or backward that needs it
//   sharded       its part of each parameter             gathers over the shard axis
//   ahead         a gather was issued, nobody used it    uses that one
//   kept_among    parts shared by n consecutive ranks    gathers among those
//   whole         the whole parameters                   gathers nothing, unless its parts have changed since
//
// A group is gathered before its module's forward and backward, is put back after them as its options say, and reduces
// once in a backward what its parameters got.
//
// A recomputation gathers a group that is not in its own backward yet; the group stays whole for that backward.
//
// Order: a forward gathers its own group, then the groups of its prefetch list. A forward takes a place in the order of
// forwards when it ends; a recomputation takes none. A backward that reaches a
// group gathers it, then the group at the place before its own last one, or those that it was told; a group that
// backward leaves is reduced, first over the shard axis, then over the replicate axis, but for what a later use still
// adds to. The end of a backward serves what is left: the root, then the groups below in the order of their modules.
// A forward that did not come to its end leaves gathered what it had gathered; the next one of the root begins all else
// anew.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/plan/facts.hpp"
#include "harness/plan/replicate_plan.hpp"

namespace lockstep::plan {

struct Reshard {
  enum class Kind { automatic, yes, no, among } kind = Kind::automatic;  // automatic: yes
  int ranks = 0;
};

struct ShardChoices {
  std::string owner;
  Axis shard;
  std::optional<Axis> replicate;
  Reshard reshard_after_forward;
  std::optional<DType> param, reduce;
  std::map<TensorId, int> dims;  // of parameters that are not cut along dim 0
};

struct FlagChange {
  std::optional<bool> requires_gradient_sync, requires_all_reduce, is_last_backward, reshard_after_backward;
  std::optional<Reshard> reshard_after_forward;
};

class ShardPlan {
 public:
  // `awaited`: the parameters that the backward which runs comes to.
  ShardPlan(const Facts& facts, const std::set<TensorId>& awaited, Issue issue)
      : facts_(facts), awaited_(awaited), issue_(std::move(issue)) {}

  // One group of these modules and parameters.
  void add_group(const std::vector<ModuleId>& modules, const std::vector<TensorId>& parameters, ShardChoices choices);
  bool has(ModuleId module) const { return group_of_.contains(module); }
  bool owns(TensorId parameter) const { return owner_of_.contains(parameter); }
  void change(ModuleId module, const FlagChange& flags);
  // What its owner makes of this parameter's part travels in its place: bytes of one rank, and the type, of each
  // tensor.
  struct Sent {
    std::int64_t bytes = 0;
    DType dtype = DType::float32;
  };
  void set_sent(TensorId parameter, std::vector<Sent> sent);
  // Of the part that a rank hands out, with its padding, and the type that the group computes in.
  Dims part_sizes(TensorId parameter) const;
  DType compute_type(TensorId parameter) const;
  int dim_of(TensorId parameter) const;
  // Which tensor the slots of a parameter hold now. One that is kept is cut among that many ranks.
  enum class Shown { part, kept, full };
  Shown shown(TensorId parameter) const;
  int num_keeping(TensorId parameter) const;
  // The parameters whose gradients have been reduced since the last call, in the order of the reductions.
  std::vector<TensorId> take_reduced() { return std::exchange(reduced_, {}); }
  // Whether a forward of this module moves its inputs to the device of the group: that of a root does, and one that
  // brings the others about.
  bool moves_inputs(ModuleId module) const;
  void set_forward_prefetch(ModuleId module, const std::vector<ModuleId>& next);
  void set_backward_prefetch(ModuleId module, const std::vector<ModuleId>& next);

  // ---- events; of modules that have a group ----
  // A call begins and ends; `recomputing`: within a backward. Says whether its inputs, its outputs are to be watched:
  // of several modules the inputs of the first that is entered, the outputs of all.
  bool enter(ModuleId module, bool recomputing);
  bool leave(ModuleId module, bool recomputing);
  void backward_reaches(ModuleId module);
  void backward_leaves(ModuleId module);
  void gradient(TensorId parameter);
  // Of which root the group is, -1 before the first forward; the end of a backward is served root by root.
  int root_of(ModuleId module) const { return groups_[number(module)].context; }
  int root_of_parameter(TensorId parameter) const { return groups_[owner_of_.at(parameter)].context; }
  void end_backward(int root);
  void unshard(ModuleId module, bool async);
  void wait_for_unshard(ModuleId module);
  void reshard(ModuleId module);
  void swap(ShardPlan& other);
  bool empty() const { return groups_.empty(); }

 private:
  enum class State { sharded, ahead, kept_among, whole };
  struct Group {
    std::vector<ModuleId> modules;
    std::vector<TensorId> parameters;
    ShardChoices choices;
    State state = State::sharded;
    std::map<TensorId, std::vector<Sent>> sent;  // of parameters that do not travel as they are
    std::map<TensorId, std::uint64_t> gathered;  // versions of the parts at the last gather
    int context = -1;                            // from the first forward of its root on
    bool is_root = false;
    bool sync = true, all_reduce = true, last_backward = true, reshard_after_backward = true;
    std::vector<std::size_t> forward_prefetch;
    std::optional<std::vector<std::size_t>> backward_prefetch;
    // of the forward
    std::set<ModuleId> entered;  // of its modules, in the call that is under way
    std::set<ModuleId> left;
    std::vector<std::size_t> positions;  // in the order of forwards
    // of the backward
    bool in_backward = false;
    std::set<TensorId> fresh;    // gradients of this backward
    std::set<TensorId> kept;     // whole gradients of backwards without synchronisation
    std::set<TensorId> partial;  // sums over the shard axis that wait for the replicate axis
  };

  // What the groups below one root share.
  struct Context {
    std::size_t root = 0;
    std::vector<std::size_t> groups;  // in the order of their modules, parents first
    std::vector<std::size_t> order;   // groups as their forwards ended
    std::optional<std::size_t> runs;  // whose forward brought the others about, while it runs
  };

  std::size_t number(ModuleId module) const { return group_of_.at(module); }
  Context& context_of(std::size_t group);
  void begin(std::size_t root);
  void begin_pass(std::size_t group);
  bool is_stale(const Group& group) const;
  void gather(std::size_t number, bool ahead = false);
  void put_back_after_forward(Group& group);
  void leave_backward(Group& group);
  void reduce(Group& group, bool at_end);
  std::int64_t whole_bytes(const Group& group, const std::set<TensorId>& tensors, bool reduced) const;
  std::int64_t gathered_bytes(const Group& group) const;
  void issue(const Group& group, const char* operation, const Axis& axis, std::int64_t bytes);

  const Facts& facts_;
  const std::set<TensorId>& awaited_;
  Issue issue_;
  std::vector<Group> groups_;
  std::vector<Context> contexts_;
  std::map<ModuleId, std::size_t> group_of_;
  std::map<TensorId, std::size_t> owner_of_;
  std::vector<TensorId> reduced_;
};

}  // namespace lockstep::plan
