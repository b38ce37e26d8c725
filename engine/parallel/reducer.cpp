#include "engine/parallel/reducer.hpp"

#include <map>
#include <set>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/grad_of_peers.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"
#include "engine/parallel/host_tensors.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

Reducer::Reducer(ReducerSettings settings, const std::vector<nn::NamedParameter>& parameters)
    : settings_(std::move(settings)) {
  auto names = std::make_shared<std::vector<std::string>>();
  for (const nn::NamedParameter& named : parameters) {
    names->push_back(named.path);
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = named.path;
    parameter.owner = named.owner;
    parameter.slot_in_owner = named.slot;
  }
  order_known_ = settings_.find_unused_parameters;
  names_ = std::move(names);
}

Reducer::~Reducer() { detach_all(); }

void Reducer::detach_all() {
  for (Parameter& parameter : parameters_)
    if (const Tensor tensor = std::exchange(parameter.tensor, Tensor()); tensor.defined()) set_accumulator(tensor, {});
  for (Bucket& bucket : buckets_) bucket.abandon();
  buckets_.clear();
}

// ---- parameters and buckets ----
Tensor Reducer::tensor_in_slot(const Parameter& parameter) {
  const auto owner = parameter.owner.lock();
  LOCKSTEP_CHECK(owner != nullptr, "the module of ", parameter.name, " is gone");
  return owner->parameters[parameter.slot_in_owner].tensor;
}

void Reducer::refuse_others(const std::vector<nn::NamedParameter>& parameters) const {
  std::set<const TensorImpl*> own;
  for (const Parameter& parameter : parameters_)
    if (parameter.tensor.defined()) own.insert(&parameter.tensor.impl());
  for (const nn::NamedParameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.owner != nullptr, "the module of ", parameter.path, " is gone");
    if (has_accumulator(parameter.tensor()) && !own.contains(&parameter.tensor().impl()))
      throw Error(str("replicate: `", parameter.path, "` of ", settings_.owner,
                      " is averaged by another replicated module already"),
                  "replicate a module or its parents, not both, children first");
  }
}

void Reducer::attach() {
  std::vector<nn::NamedParameter> in_slots;
  for (const Parameter& parameter : parameters_)
    in_slots.push_back({parameter.name, parameter.owner.lock(), parameter.slot_in_owner});
  refuse_others(in_slots);  // before anything changes
  detach_all();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.tensor = tensor_in_slot(parameter);
    // The accumulator must not own the reducer, which owns the tensor.
    set_accumulator(parameter.tensor, [weak = weak_from_this(), i](const Tensor& leaf, const Tensor& gradient) {
      if (const auto reducer = weak.lock())
        reducer->on_gradient(static_cast<int>(i), gradient);
      else
        accumulate_grad(leaf, gradient);
    });
  }
  make_buckets(settings_.find_unused_parameters ? layout::make_static_buckets(bucket_parameters(), settings_.limits)
                                                : layout::make_first_buckets(bucket_parameters()));
}

std::vector<layout::BucketParameter> Reducer::bucket_parameters() const {
  std::vector<layout::BucketParameter> all;
  for (const Parameter& parameter : parameters_) {
    const Tensor& tensor = parameter.tensor;
    const int kind = static_cast<int>(tensor.device().kind) * num_dtypes + static_cast<int>(tensor.dtype());
    all.push_back({tensor.num_bytes(), kind});
  }
  return all;
}

void Reducer::make_buckets(const layout::Buckets& plan) {
  for (Bucket& bucket : buckets_) bucket.reset();
  buckets_.clear();
  for (const std::vector<int>& members : plan) {
    std::vector<Bucket::Slot> slots;
    for (const int index : members) {
      Parameter& parameter = parameters_[static_cast<std::size_t>(index)];
      parameter.bucket = static_cast<int>(buckets_.size());
      parameter.slot = static_cast<int>(slots.size());
      slots.push_back({index, parameter.tensor.sizes(), 0, false, false});
    }
    const Tensor& first = parameters_[static_cast<std::size_t>(members.front())].tensor;
    buckets_.emplace_back(std::move(slots), first.dtype(), first.device());
  }
}

// All ranks take the buckets of rank 0: one broadcast of the parameters' indices and one of the buckets' sizes.
layout::Buckets Reducer::agree_on_order(const layout::Buckets& mine) const {
  std::vector<std::int64_t> indices, sizes;
  for (const auto& bucket : mine) {
    sizes.push_back(static_cast<std::int64_t>(bucket.size()));
    indices.insert(indices.end(), bucket.begin(), bucket.end());
  }
  indices.push_back(static_cast<std::int64_t>(sizes.size()));
  comm::Call call;
  call.family = comm::Family::start_up;
  call.owner = settings_.owner;
  indices = broadcast_numbers(*settings_.all_ranks, indices, call);
  sizes.resize(static_cast<std::size_t>(indices.back()));
  sizes = broadcast_numbers(*settings_.all_ranks, sizes, call);
  layout::Buckets agreed;
  std::size_t next = 0;
  for (const std::int64_t size : sizes) {
    auto& bucket = agreed.emplace_back();
    for (std::int64_t i = 0; i < size; ++i) bucket.push_back(static_cast<int>(indices[next++]));
  }
  return agreed;
}

void Reducer::prepare_forward(bool synchronize) {
  bool replaced = false;
  for (const Parameter& parameter : parameters_)
    replaced = replaced || !parameter.tensor.defined() || !parameter.tensor.same_as(tensor_in_slot(parameter));
  // A cast keeps the tensor and changes its type, so the buckets no longer fit.
  for (const Parameter& parameter : parameters_) {
    if (replaced || buckets_.empty()) break;
    const Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
    replaced = !bucket.fits(parameter.slot, parameter.tensor);
  }
  if (replaced) {
    attach();
    ready_order_.clear();
    order_known_ = settings_.find_unused_parameters;
  }
  if (!order_known_ && ready_order_.size() == parameters_.size() && !parameters_.empty()) {
    make_buckets(agree_on_order(layout::make_ready_buckets(bucket_parameters(), ready_order_, settings_.limits)));
    order_known_ = true;
  }
  synchronize_ = synchronize;  // last: a forward that is refused leaves the flag of an earlier one
}

void Reducer::attach_if_free() {
  if (parameters_.empty() || !buckets_.empty()) return;
  for (const Parameter& parameter : parameters_)
    if (has_accumulator(tensor_in_slot(parameter))) return;  // the next forward that records a graph refuses it
  attach();
}

Averaging Reducer::averaging() const {
  Averaging how;
  how.num_ranks = settings_.all_ranks->size();
  how.owner = settings_.owner;
  how.before = before_all_reduce;
  if (settings_.gradient_as_bucket_view) how.memory = device::Purpose::gradient;
  return how;
}

// ---- during a backward ----
bool Reducer::is_collecting() const { return state_ == State::collecting && backward_runs(armed_in_); }

void Reducer::arm() {
  if (buckets_.empty() || (state_ == State::collecting && armed_in_ == backward_id())) return;
  if (state_ == State::collecting && collect_for_sync_ && backward_runs(armed_in_))
    throw Error(
        str("replicate: a backward reaches ", settings_.owner, " within another backward that averages its gradients"),
        "call it before or after the other backward, or use fully_shard");
  // If the reducer still collects for another backward, that one failed; its gradients are dropped.
  state_ = State::collecting;
  armed_in_ = backward_id();
  collect_for_sync_ = synchronize_;
  next_bucket_ = 0;
  averaging_ = averaging();
  for (Bucket& bucket : buckets_) bucket.reset();
  if (!order_known_ && collect_for_sync_) ready_order_.clear();
  queue_backward_callback([weak = weak_from_this(), id = armed_in_] {
    const auto reducer = weak.lock();
    if (reducer && reducer->armed_in_ == id) reducer->finish();
  });
  if (collect_for_sync_) settle_unreached();
}

// Settles the slots of parameters that this backward does not reach, so that their buckets need not wait until its end:
// with the gradients that were kept back or, if unused parameters are allowed, without one.
void Reducer::settle_unreached() {
  for (const Parameter& parameter : parameters_) {
    if (backward_reaches(parameter.tensor)) continue;
    if (!put_kept_back(parameter) && !settings_.find_unused_parameters) continue;
    buckets_[static_cast<std::size_t>(parameter.bucket)].settle(parameter.slot);
  }
  reduce_ready();
}

// For a parameter that gets no gradient in this backward. Returns whether it has kept-back gradients. It then counts as
// ready: all ranks have filled the same slots, so the order is complete on all of them or on none.
bool Reducer::put_kept_back(const Parameter& parameter) {
  const Tensor kept_back = kept_back_grad(parameter.tensor);
  if (!kept_back.defined()) return false;
  Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
  bucket.put(parameter.slot, kept_back, averaging_);
  if (!order_known_) ready_order_.push_back(bucket.slots()[static_cast<std::size_t>(parameter.slot)].parameter);
  return true;
}

void Reducer::on_gradient(int index, const Tensor& gradient) {
  arm();
  const Parameter& parameter = parameters_[static_cast<std::size_t>(index)];
  const Tensor kept_back = kept_back_grad(parameter.tensor);
  if (!collect_for_sync_) {
    if (kept_back.defined()) {
      raw::add_(kept_back, gradient);
    } else {
      const device::PurposeScope purpose(device::Purpose::gradient);
      keep_back(parameter.tensor, {raw::clone(gradient), nullptr});
    }
    return;
  }
  Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
  if (kept_back.defined()) bucket.put(parameter.slot, kept_back, averaging_);
  bucket.put(parameter.slot, gradient, averaging_);
  if (!order_known_) ready_order_.push_back(index);
  bucket.settle(parameter.slot);
  reduce_ready();
}

void Reducer::reduce_ready() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].state() == BucketState::ready)
    reduce(buckets_[next_bucket_++]);
}

// The digest covers the names of the parameters in order and, unless unused parameters are allowed, which of them have
// a gradient.
void Reducer::reduce(Bucket& bucket) {
  std::uint64_t agreement = 1;
  for (const Bucket::Slot& slot : bucket.slots()) {
    agreement = fnv1a_append(agreement, parameters_[static_cast<std::size_t>(slot.parameter)].name);
    if (!settings_.find_unused_parameters && !slot.filled) agreement = fnv1a_append(agreement, "without");
  }
  // The worker thread of a stream may call this after the reducer is gone, so it captures copies only.
  auto text = [owner = settings_.owner, names = names_, slots = bucket.slots()] {
    std::string with, without;
    for (const Bucket::Slot& slot : slots) {
      const std::string& name = (*names)[static_cast<std::size_t>(slot.parameter)];
      std::string& list = slot.filled ? with : without;
      list += str(list.empty() ? "" : ", ", name);
    }
    return str("gradients of ", owner, ": ", with.empty() ? "none" : with.c_str(),
               without.empty() ? std::string() : str("; no gradient: ", without));
  };
  bucket.reduce(groups_of(bucket), averaging_, agreement, std::move(text));
}

std::span<comm::ProcessGroup* const> Reducer::groups_of(const Bucket& bucket) const {
  if (defect_armed(Defect::replicate_bucket_not_sent) && &bucket == &buckets_.back()) [[unlikely]]
    return {};
  return settings_.groups;
}

// ---- at the end of a backward ----
void Reducer::finish() {
  const auto end = [this] {
    state_ = State::idle;
    armed_in_ = 0;
  };
  if (!collect_for_sync_) return end();
  // Parameters that were reached and got no gradient are settled now, so that every rank issues all its reductions.
  for (const Parameter& parameter : parameters_) {
    Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
    if (bucket.slots()[static_cast<std::size_t>(parameter.slot)].settled) continue;
    put_kept_back(parameter);
    bucket.settle(parameter.slot);
  }
  reduce_ready();
  const std::vector<std::int64_t> users =
      settings_.find_unused_parameters ? count_users() : std::vector<std::int64_t>();
  for (Bucket& bucket : buckets_)
    if (bucket.state() == BucketState::reducing) bucket.wait();
  end();
  if (!settings_.find_unused_parameters) fail_on_missing();
  take_results(users);
}

// Per parameter, the number of ranks on which it has a gradient; one integer all-reduce.
std::vector<std::int64_t> Reducer::count_users() {
  std::vector<std::int64_t> used;
  for (const Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
    used.push_back(bucket.slots()[static_cast<std::size_t>(parameter.slot)].filled ? 1 : 0);
  }
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.owner = settings_.owner;
  return sum_numbers(*settings_.all_ranks, used, call);
}

void Reducer::fail_on_missing() const {
  std::string missing;
  for (const Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(parameter.bucket)];
    if (!bucket.slots()[static_cast<std::size_t>(parameter.slot)].filled)
      missing += str(missing.empty() ? "" : ", ", parameter.name);
  }
  if (missing.empty()) return;
  // PyTorch raises this text in the next forward.
  throw Error(str("replicate: no rank had a gradient in this backward for these parameters of ", settings_.owner, ": ",
                  missing, ". Expected to have finished reduction in the prior iteration before starting a new one."),
              "use them in the loss, freeze them, or set find_unused_parameters");
}

// Takes all results from the buckets before a hook runs. The hook may run a forward, which may make the buckets anew,
// or a backward, which fills them.
void Reducer::take_results(const std::vector<std::int64_t>& users) {
  struct Result {
    Tensor parameter, mean;
  };
  std::vector<Result> results;
  for (Bucket& bucket : buckets_) {
    for (std::size_t slot = 0; slot < bucket.slots().size(); ++slot) {
      const auto index = static_cast<std::size_t>(bucket.slots()[slot].parameter);
      const Tensor& parameter = parameters_[index].tensor;
      forget_kept_back(parameter);
      if (!users.empty() && users[index] == 0) continue;
      results.push_back({parameter, sharded_like(bucket.result(static_cast<int>(slot)), parameter)});
    }
    bucket.reset();  // results, and gradients that are views, keep its memory alive
  }
  for (Result& result : results) {
    const Result taken = std::move(result);  // the memory of a bucket ends with its last result
    if (settings_.gradient_as_bucket_view && !grad(taken.parameter).defined())
      set_grad(taken.parameter, taken.mean);
    else
      accumulate_grad(taken.parameter, taken.mean);
    run_post_accumulate_hooks(taken.parameter);
  }
}

}  // namespace lockstep::parallel
