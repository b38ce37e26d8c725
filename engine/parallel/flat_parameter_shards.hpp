// The shards of flat_shard: the parameters of a unit are one flat tensor, of which this rank holds a chunk.
//
//   shard    the chunk of this rank, in the original type; it lives as long as the model
//   views    the local stretch of each parameter, views of the shard: what optimizers see. On a mesh that does not
//            shard they have the sizes of the parameters, otherwise one dim.
//   leaves   the unsharded parameters, views of one storage that has memory while the unit is unsharded
//
// An all-gather writes that memory in place: there is no copy-out. Without `original_parameters` optimizers see the
// shard itself, in a slot named `_flat_param` of the unit's module, and the slots of the parameters are not listed.
//
// Sources: flat_parameter_shards.cpp (shard, slots, all-gather), flat_reduction.cpp (gradients), flat_full.cpp (full
// values outside forward and backward).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout/flat_parameter.hpp"
#include "engine/parallel/flat_state_dict_settings.hpp"
#include "engine/parallel/group_shards.hpp"
#include "engine/parallel/shard_collect.hpp"

namespace lockstep::parallel {

struct FlatSettings {
  bool original_parameters = true;
  bool keep_low_precision_gradients = false;
};

class FlatParameterShards final : public GroupShards {
 public:
  // Takes the values out of the slots of the parameters and puts the views there. `module`: that of the unit.
  FlatParameterShards(GroupSettings settings, FlatSettings flat, const nn::ModulePtr& module,
                      const std::vector<CollectedParameter>& parameters);
  // A graph that holds the unsharded parameters may still read them. Their memory is freed when nothing holds them.
  ~FlatParameterShards() override;

  const layout::FlatParameter& flat() const { return flat_; }
  bool has_original_parameters() const { return options_.original_parameters; }
  const Tensor& shard() const { return shard_; }
  const std::string& parameter_name(std::size_t index) const { return parameters_[index].name; }

  StateDictSettings state_dict;  // the form of its entries (flat_state_dict.hpp)

  // An optimizer step that changes the shards of other ranks only: the next forward gathers where theirs do.
  void note_step_elsewhere();

  // ---- full values (flat_full.cpp) ----
  // The flat tensor of the chunks of all ranks, on the device of the unit: one all-gather on compute. `chunk`: of any
  // type, laid out as the shard (a shard, its gradient, a state of an optimizer).
  Tensor gather_flat(const Tensor& chunk) const;
  // A parameter in a flat tensor: a view of its full sizes, with the layout of tensor parallelism.
  Tensor part_of(const Tensor& flat, std::size_t index) const;
  // The stretch of this rank in a full parameter, 1-d; on a mesh that does not shard all of it.
  Tensor stretch_of_full(const Tensor& full, std::size_t index) const;
  // The gradients that optimizers see as one chunk: zeros where there is none.
  Tensor gradient_chunk() const;
  // Puts full parameters into the slots, one each or none (undefined), until hide_full(). Throws Error when the unit
  // shows some already.
  void show_full(const std::vector<Tensor>& full);
  void hide_full();
  bool shows_full() const { return shows_full_; }
  bool holds_full() const { return holds_full_; }  // this rank got full parameters

  // The stretch of a parameter on this rank.
  layout::Stretch stretch(std::size_t index) const;

  DType original_type() const override { return shard_.dtype(); }
  DType accumulation_type() const override;
  DType gradient_type() const override;
  std::size_t num_parameters() const override { return parameters_.size(); }
  using GroupShards::parameter;
  UnshardedParameter& parameter(std::size_t index) override { return parameters_[index]; }
  const Tensor& shown(std::size_t index) const override { return parameters_[index].view; }
  // A tensor in the place of a view is copied into the shard, and the view comes back.
  void adopt_slots() override;
  void refuse_replaced_shards() override;
  bool shards_changed() const override;

  Tensor gather_input(const KeptShards* kept) override;
  Tensor gather_output(const Tensor& input, int num_ranks) override;
  bool install_unsharded(const Tensor& gathered, int num_ranks) override;
  bool show_shards() override;
  void show_unsharded() override { put_leaves(); }
  std::optional<UsedMemory> install_shards() override;
  KeptShards install_kept(int ranks) override;

  bool gradients_follow_trained() const override { return true; }
  std::size_t num_trained() const override { return options_.original_parameters ? parameters_.size() : 1; }
  const Tensor& trained(std::size_t index) const override;
  Tensor& partial_sum(std::size_t) override { return partial_sum_; }
  Division division(const ShardedMean& mean) const override;
  ReductionPlan plan_reduction(const std::vector<bool>& complete, bool all_reduces) const override;
  void fill_reduction_input(const ReductionPlan& plan, const Tensor& input) override;

 private:
  struct Parameter final : UnshardedParameter {
    Parameter(const CollectedParameter& from);
    bool requires_grad() const override;
    Tensor view;      // what optimizers see of it, or would see
    Tensor decisive;  // requires a gradient if the parameter does
  };

  Tensor empty_shard(DType dtype, device::Device device) const;
  device::Device home() const { return offloads() ? device::Device{} : settings().device; }
  Tensor view_of_shard(std::size_t index) const;
  void add_flat_slot(const nn::ModulePtr& module);
  bool is_in_place(const Parameter& parameter, const Tensor& now) const;
  void refuse_changed_tie(const Parameter& parameter, const Tensor& now) const;
  void check_written(const std::string& name, const Dims& sizes, const Tensor& now) const;
  void adopt_chunk();
  void write_back(const std::vector<std::size_t>& changed);
  void make_leaves(const Tensor& gathered);
  void put_views();
  void put_leaves();
  Tensor to_compute(const Tensor& shard) const;

  FlatSettings options_;
  std::vector<Parameter> parameters_;
  layout::FlatParameter flat_;
  Tensor shard_;
  Tensor unsharded_;    // the flat parameter whose storage the leaves share
  Tensor partial_sum_;  // always undefined: every reduction is complete
  ParameterSlotRef flat_slot_;
  bool shows_full_ = false, holds_full_ = false;
  ShardVersion gathered_;        // at the last gather_input()
  ShardVersion unsharded_from_;  // whose values the leaves got last
};

}  // namespace lockstep::parallel
