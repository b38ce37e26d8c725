// The reducer of a replicated module: takes the place of accumulation for its parameters, averages gradients in buckets
// while backward goes on, and adds the means to the gradients at its end.
//
// One a replicated module and rank, owned by the module's registry of applied APIs. All ranks run the same forwards and
// backwards; each bucket's collective carries a digest of what this rank puts in it, so that ranks which disagree get
// an error naming parameters.
//
//   state      what it means                               goes on to
//   idle       no backward has reached the parameters      collecting (arm: the first sign of one)
//   collecting gradients go to buckets, or are kept back   idle       (finish, at the end of that backward)
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
  std::vector<comm::ProcessGroup*> groups;  // averaged over one after the other, the inner axis first
  comm::ProcessGroup* all_ranks = nullptr;
  layout::BucketLimits limits;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  std::string owner;
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // `parameters`: those that are averaged, in registration order.
  Reducer(ReducerSettings settings, const std::vector<nn::NamedParameter>& parameters);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Gradients that another reducer of the module has kept back, of the parameters that this one has too. The other one
  // lets go of all of them.
  void take_over(Reducer& before);
  // At a forward that records: follows tensors that were exchanged in their slots, cuts the buckets anew once the order
  // of gradients is known, and notes whether the backward of this forward synchronises.
  void prepare_forward(bool synchronize);
  // When backward reaches the module, or the first gradient comes.
  void arm();

  std::function<void()> before_all_reduce;  // runs on the stream of the collective, before each; may be empty
  int num_buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  enum class State { idle, collecting };
  struct Parameter {
    std::string name;
    std::weak_ptr<nn::Module> owner;  // which owns the reducer, by its registry
    std::size_t slot_in_owner = 0;
    Tensor tensor;   // the leaf that carries the accumulator
    Tensor pending;  // full gradients kept back by backwards without synchronisation
    int bucket = 0;
    int slot = 0;
  };

  static Tensor in_slot(const Parameter& parameter);  // the tensor that the module holds now
  void attach();                                      // puts the accumulators in place and plans the first buckets
  void detach_all();
  void make_buckets(const layout::Buckets& plan);
  layout::Buckets agree_on_order(const layout::Buckets& mine) const;
  std::vector<layout::BucketParameter> bucket_parameters() const;
  Averaging averaging() const;

  void on_gradient(int index, const Tensor& gradient);
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
  std::shared_ptr<const std::vector<std::string>> names_;  // theirs; streams may ask for them when the reducer is gone
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;  // buckets start strictly in sequence
  Averaging averaging_;          // of the backward that is collected for
  State state_ = State::idle;
  std::uint64_t armed_in_ = 0;  // the backward it collects for
  bool synchronize_ = true;     // as the last forward said
  bool collect_for_sync_ = true;
  bool order_known_ = false;      // buckets were cut in the order of readiness, or never will be
  std::vector<int> ready_order_;  // of the first synchronised backward
};

}  // namespace lockstep::parallel
