// The reducer of a replicated module. It replaces gradient accumulation for the module's parameters: it averages their
// gradients in buckets during backward and adds the means to the gradients at its end.
//
// A rank has one reducer per replicated module; the module's registry of applied APIs owns it. All ranks run the same
// forwards and backwards. The all-reduce of a bucket carries a digest of the names of its gradients, so ranks that
// disagree get an error with the names of the parameters.
//
//   state      meaning                                            next state
//   idle       no backward has reached the parameters             collecting (arm, when one reaches them)
//   collecting gradients go to buckets, or are kept back          idle       (finish, at the end of that backward)
//                                                                 collecting (arm, if that backward failed)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/layout/buckets.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/bucket.hpp"

namespace lockstep::parallel {

struct ReducerSettings {
  std::vector<comm::ProcessGroup*> groups;  // one per mesh axis, the inner axis first
  comm::ProcessGroup* all_ranks = nullptr;
  layout::BucketLimits limits;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  std::string owner;
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // `parameters`: those that require a gradient, in registration order.
  Reducer(ReducerSettings settings, const std::vector<nn::NamedParameter>& parameters);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Throws Error for a parameter that another reducer averages.
  void refuse_others(const std::vector<nn::NamedParameter>& parameters) const;
  // Removes the accumulators. Gradients that are kept back stay with their parameters, for another reducer.
  void detach_all();
  // At a forward that records a graph: adopts tensors that were assigned to the slots, makes new buckets once the order
  // of gradients is known, and notes whether the backward of this forward synchronizes.
  void prepare_forward(bool synchronize);
  // At a forward that records no graph: adopts the parameters if that has not been done and no other reducer has one.
  void attach_if_free();
  // When backward reaches the module, or at the first gradient.
  void arm();
  // Whether a running backward fills the buckets. One that failed does not run any more.
  bool is_collecting() const;

  std::function<void()> before_all_reduce;  // runs on the stream of the collective, before each; may be empty
  int num_buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  enum class State { idle, collecting };
  struct Parameter {
    std::string name;
    std::weak_ptr<nn::Module> owner;  // weak, as the module owns the reducer
    std::size_t slot_in_owner = 0;
    Tensor tensor;  // the leaf that carries the accumulator, and the gradients kept back without synchronization
    int bucket = 0;
    int slot = 0;
  };

  static Tensor tensor_in_slot(const Parameter& parameter);
  void attach();  // sets the accumulators and makes the first buckets
  void make_buckets(const layout::Buckets& plan);
  layout::Buckets agree_on_order(const layout::Buckets& mine) const;
  std::vector<layout::BucketParameter> bucket_parameters() const;
  Averaging averaging() const;

  void on_gradient(int index, const Tensor& gradient);
  bool put_kept_back(const Parameter& parameter);
  void settle_unreached();
  void reduce_ready();
  void reduce(Bucket& bucket);
  std::span<comm::ProcessGroup* const> groups_of(const Bucket& bucket) const;
  void finish();
  std::vector<std::int64_t> count_users();
  void fail_on_missing() const;
  void take_results(const std::vector<std::int64_t>& users);

  ReducerSettings settings_;
  std::vector<Parameter> parameters_;
  std::shared_ptr<const std::vector<std::string>> names_;  // of the parameters; may outlive the reducer
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;  // buckets are reduced strictly in order
  Averaging averaging_;          // of the running backward
  State state_ = State::idle;
  std::uint64_t armed_in_ = 0;    // the running backward
  bool synchronize_ = true;       // the flag of the last forward
  bool collect_for_sync_ = true;  // the flag of the running backward
  bool order_known_ = false;      // the buckets follow the order of readiness, or never will
  std::vector<int> ready_order_;  // of the parameters in the first synchronized backward
};

}  // namespace lockstep::parallel
