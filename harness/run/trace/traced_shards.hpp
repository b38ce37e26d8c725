// The parameters of fully_shard and flat_shard in a dry run: tensors without values, with the types, layouts and
// devices that the policies give them. All of it comes from engine/layout and the states of the planner, none from
// engine/parallel.
//
//   shard               the tensor in the parameter slots between calls, which optimizers see: sharded, of the
//                       parameter's type
//   post_forward_shard  the shard while `reshard_after_forward` keeps the parameter sharded among fewer ranks
//   full                the full parameter that a module computes with: a leaf of the type that the policy computes
//                       in. If the parameter was sharded over other axes before, it has that layout.
//
// The shard of a parameter of a unit of flat_shard is a plain view of the chunk of this rank: 1-d and possibly empty.
// If the unit is not sharded, it has the sizes of the parameter. Without the original parameters, a slot of its own
// holds the chunk.
//
// follow() puts one of the three into the parameter slots, as the state of the planner says, and gives the shards their
// reduced gradients.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/mesh/sharded.hpp"
#include "engine/nn/module.hpp"
#include "harness/plan/flat_layout.hpp"
#include "harness/plan/planner.hpp"
#include "harness/run/trace/traced_buffers.hpp"
#include "harness/run/values/value.hpp"

namespace lockstep::run {

struct ShardPolicy {
  std::optional<DType> param, reduce, output;
  bool casts_inputs = true;
  bool casts_inputs_of_root = false;
  device::Device compute_device;  // a stand-in, as the next
  device::Device shard_device;
};

class TracedShards {
 public:
  struct Events {
    std::function<void(plan::TensorId, const Tensor&)> replaced;  // the parameter is another tensor from now on
    std::function<void(plan::TensorId)> gradient;                 // the full parameter got a gradient
    // Whether tensor_parallel has distributed the parameter: then it is shown in full sizes, with a note of its layout.
    std::function<bool(plan::TensorId)> is_distributed;
    std::function<void(plan::TensorId, const Tensor&)> made_full;
  };
  TracedShards(plan::Planner& planner, Events events);

  struct Slot {
    nn::ModulePtr owner;
    std::size_t index = 0;
    nn::ParameterSlot& get() const { return owner->parameters[index]; }
  };
  struct Parameter {
    plan::TensorId id = 0;
    std::vector<Slot> slots;
    int dim = 0;
    LayoutPtr inner = nullptr;  // of the full parameter: that of tensor parallelism, null without it
    Dims sizes{};               // of the full parameter
    Tensor shard, post_forward_shard, full;
    // Where the memory of stand-ins is counted: that of `full`; the shards that this rank keeps after forward, with
    // their padding; and the post-forward shard, unless it is a view of these.
    device::MemoryPtr gathered{}, kept{}, shown{};
    Tensor fresh{};  // the full gradient of this backward until it is reduced
  };
  struct UnitSettings {
    plan::FlatChoices choices;
    bool original_parameters = true;
    bool keeps_compute_type = false;  // gradients of optimizers have the type of the computation
    std::optional<DType> buffer{};
  };
  // The choices of set_state_dict_type.
  struct StateSettings {
    plan::StateType type = plan::StateType::full;
    bool on_host = false, only_first_rank = false;
  };
  struct FlatUnit {
    UnitSettings settings;
    plan::ModuleId id = 0;
    std::vector<nn::ModulePtr> modules;
    plan::FlatLayout layout{};
    int rank = 0;                // on the shard axis
    Tensor chunk{};              // of this rank, which the shards are views of
    StoragePtr storage{};        // of the chunk when the views were made
    std::optional<Slot> slot{};  // of the chunk, without the original parameters
    bool casts_buffers = false;  // until the first forward of the root
    StateSettings state{};
    bool shows_full = false;  // the slots hold full parameters, outside forward and backward
  };
  struct Group {
    ShardPolicy policy;
    MeshPtr mesh;
    std::vector<Parameter> parameters;
    std::optional<FlatUnit> flat{};
    bool moves_inputs = true;  // as in its last forward: so does a recomputation, which has no root
  };
  // Shards the parameters of one group, which the planner knows already.
  void add_group(const std::vector<nn::ModulePtr>& modules, const std::vector<plan::ModuleId>& ids,
                 std::vector<Parameter> parameters, const MeshPtr& mesh, const ShardPolicy& policy);
  // The same for a unit of flat_shard. `parameters` in the order of the flat parameter, `modules`: those of the unit,
  // its own first.
  void add_unit(plan::ModuleId id, const std::vector<nn::ModulePtr>& modules, std::vector<Parameter> parameters,
                const MeshPtr& mesh, const ShardPolicy& policy, const UnitSettings& settings);
  // The full parameters of the units below a module, until hide_full(). `on_host`: they are on the host.
  struct Summon {
    bool gradients = false, only_first_rank = false, on_host = false;
  };
  void show_full(const std::vector<plan::ModuleId>& ids, const Summon& summon);
  void hide_full(const std::vector<plan::ModuleId>& ids, bool writes_values, bool writes_gradients);
  std::vector<plan::ModuleId> units_below(const nn::ModulePtr& module) const;  // in module pre-order
  const Group& unit(plan::ModuleId id) const { return groups_[group_of_.at(id)]; }
  // What a tensor that optimizers update stands for: the chunk of a unit, or one parameter of it.
  struct TrainedPart {
    plan::ModuleId unit = 0;
    std::size_t index = 0;
    bool is_chunk = false;
  };
  std::optional<TrainedPart> trained_as(const Tensor& tensor) const;
  // Whether some rank has a gradient of a parameter of a unit.
  static bool has_gradient(const Group& group, const Parameter& parameter);
  // The layout of a parameter in a sharded state dict.
  static LayoutPtr piece_layout(const Group& group, const Parameter& parameter);
  // The tensor of a parameter in a full or sharded state dict of the unit.
  static Tensor state_tensor(const Group& group, const Parameter& parameter, DType dtype,
                             const StateSettings& settings);
  // What a norm of the gradients of a unit is reduced over, per parameter; none for a unit that does not shard.
  std::vector<plan::Planner::Gradient> norms_of_unit(plan::ModuleId id) const;
  bool gives_compute_type(plan::ModuleId unit) const {  // gradients of optimizers have that type
    return groups_[group_of_.at(unit)].flat->settings.keeps_compute_type;
  }
  bool has_original_parameters(plan::ModuleId unit) const { return !groups_[group_of_.at(unit)].flat->slot; }
  // The gradient of the chunk of a unit, as clipping reads it. Nothing for a unit that is not sharded.
  std::optional<plan::Planner::Gradient> gradient_of_chunk(plan::ModuleId unit) const;
  // The gradients that a scaler agrees on for a trained stretch or chunk of a unit: that of the chunk if the unit is
  // sharded, and those of its parameters that tensor parallelism has distributed.
  std::vector<plan::Planner::Gradient> gradients_of_part(const Tensor& trained) const;
  // An optimizer step changes the chunks of all ranks, also of those where no element has a gradient.
  void note_step(const std::vector<Tensor>& stepped);
  // ---- state dicts of units: traced_flat_state.cpp ----
  void set_state_settings(const nn::ModulePtr& root, const StateSettings& settings);
  // Those of the first unit at or below the module.
  const StateSettings& state_settings(const nn::ModulePtr& root) const;
  // Plans and makes the state dict of a module with units, and plans the load of one. `type_of`: the type of the tensor
  // under a name, of which the unit holds values of another type; none if there is no such tensor.
  nn::StateDict state_of(const nn::ModulePtr& root);
  using TypeOfEntry = std::function<std::optional<DType>(const std::string& name, DType held)>;
  void load_state(const nn::ModulePtr& root, const TypeOfEntry& type_of);
  // A tensor that a load or a cast put into the slots is the shard from now on.
  void adopt_replaced();
  void follow();
  void end_forward() { buffers_.end_forward(); }  // of the outermost module
  // A backward has ended: frees the gradients and buffers that only it needs.
  void end_backward();
  bool holds(const Tensor& tensor) const;  // as one of the two shards of a parameter

  // Moves and casts the inputs of a call as the module's group does, and casts its outputs.
  void prepare_inputs(plan::ModuleId module, nn::Inputs& inputs);
  void finish_outputs(plan::ModuleId module, nn::Structure& outputs) const;

 private:
  void shard_parameter(const Group& group, Parameter& parameter) const;
  const Tensor& full_of(const Group& group, Parameter& parameter);
  const Tensor& post_forward_shard_of(const Group& group, Parameter& parameter);
  void hold_post_forward_shard(const Group& group, Parameter& parameter) const;
  void reshard_before_reading(const std::vector<nn::ModulePtr>& modules, plan::ModuleId first, const Group& group);
  void show(Group& group);
  // Gives the full parameters of this owner that the slots show their memory. Returns whether there are any.
  bool install_full(const std::string& owner);
  void hold_gradient(plan::TensorId id, const Tensor& gradient);
  void deliver_gradients();
  static std::int64_t bytes_beside_gradient(const Group& group, const Tensor& shard);
  // The tensors that optimizers update.
  static const Tensor& trained(const Group& group, const Parameter& parameter);
  // ---- units of flat_shard: traced_flat_units.cpp, traced_flat_full.cpp ----
  static void make_chunk(Group& group, DType dtype, device::Device device);
  static Tensor part_of_chunk(const FlatUnit& unit, const Parameter& parameter, std::size_t index);
  void adopt_replaced_in_unit(Group& group);
  static void cast_buffers(FlatUnit& unit);
  static std::vector<Tensor> give_gradients(Group& group);
  static DType gradient_type(const Group& group);
  static void give_gradient(const Group& group, const Tensor& shard, bool has);
  void note_gradients_kept_back(const Group& group);
  void forget_gradient_kept_back(plan::ModuleId unit, std::size_t index);
  // ---- traced_flat_state.cpp ----
  struct StateEntry {
    std::string path;
    const nn::BufferSlot* buffer = nullptr;  // null: a parameter
    Tensor held{};                           // of a parameter outside of units
    const Group* group = nullptr;            // the unit of the parameter or buffer, null outside of units
    std::size_t index = 0;                   // of the parameter
    bool is_chunk = false;                   // all parameters of the unit
  };
  std::vector<StateEntry> state_entries(const nn::ModulePtr& root) const;

  plan::Planner& planner_;
  Events events_;
  TracedBuffers buffers_;
  std::vector<Group> groups_;
  std::map<plan::ModuleId, std::size_t> group_of_;
};

}  // namespace lockstep::run
