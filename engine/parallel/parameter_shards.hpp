// The shards of fully_shard: each parameter is sharded along one of its dims, and all travel in one flat buffer.
//
// Sources: parameter_shards.cpp (slots, gradients), parameter_gather.cpp (all-gather), parameter_kept.cpp (shards kept
// after forward), parameter_extension.cpp (all-gathers with extensions).
#pragma once

#include <any>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/parallel/group_shards.hpp"
#include "engine/parallel/shard_parameter.hpp"

namespace lockstep::parallel {

class PerParameterShards final : public GroupShards {
 public:
  PerParameterShards(GroupSettings settings, std::vector<ShardParameter> parameters);

  DType original_type() const override { return parameters_.front().sharded().dtype(); }
  DType accumulation_type() const override;
  std::vector<ShardParameter>& parameters() { return parameters_; }
  std::size_t num_parameters() const override { return parameters_.size(); }
  using GroupShards::parameter;
  UnshardedParameter& parameter(std::size_t index) override { return parameters_[index]; }
  const Tensor& shown(std::size_t index) const override { return parameters_[index].sharded(); }
  void adopt_slots() override;
  bool shards_changed() const override;

  Tensor gather_input(const KeptShards* kept) override;
  Tensor gather_output(const Tensor& input, int num_ranks) override;
  bool install_unsharded(const Tensor& gathered, int num_ranks) override;
  std::any take_gather_metadata() override { return sent_.empty() ? std::any() : std::any(std::exchange(sent_, {})); }
  void show_unsharded() override;
  std::optional<UsedMemory> install_shards() override;
  KeptShards install_kept(int ranks) override;

  std::size_t num_trained() const override { return parameters_.size(); }
  const Tensor& trained(std::size_t index) const override { return parameters_[index].sharded(); }
  Tensor& partial_sum(std::size_t index) override { return parameters_[index].partial_sum; }
  Division division(const ShardedMean& mean) const override { return shard_division(mean); }
  ReductionPlan plan_reduction(const std::vector<bool>& complete, bool all_reduces) const override;
  void fill_reduction_input(const ReductionPlan& plan, const Tensor& input) override;

 private:
  // ---- all-gather ----
  layout::FlatShards gather_plan(int num_ranks) const;
  void copy_shard(const Tensor& input, const layout::FlatShards& flat, std::size_t index) const;
  std::int64_t input_offset(const layout::FlatShards& flat, std::size_t index) const;

  // ---- shards kept after forward ----
  Tensor copy_kept_piece(std::size_t index, int rank, int shards_per_rank) const;

  // ---- all-gathers with extensions ----
  struct SentTensor {  // one tensor that a parameter sends
    Dims sizes;
    DType dtype;
    std::int64_t offset_bytes = 0;  // in the flat buffer of a rank
  };
  struct SentParameter {
    std::vector<SentTensor> tensors;
    nn::Structure metadata;
  };
  bool has_extensions() const;
  GatherSite site_of(std::size_t index) const;
  Tensor padded_shard(std::size_t index) const;
  std::vector<Tensor> tensors_to_send(std::size_t index);
  Tensor pack_extended();
  void unpack_extended(std::size_t index, const Tensor& gathered, const Tensor& memory);
  std::vector<Tensor> gathered_tensors(std::size_t index, const Tensor& gathered) const;

  std::vector<ShardParameter> parameters_;
  std::vector<layout::ShardedParameter> cuts_;
  std::vector<SentParameter> sent_;  // of the issued all-gather; empty without extensions
};

// extend_gather() searches the registered shards that are alive.
void register_shards(const std::shared_ptr<PerParameterShards>& shards);

}  // namespace lockstep::parallel
