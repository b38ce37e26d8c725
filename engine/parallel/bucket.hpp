// A bucket of gradients that are averaged over the ranks together.
//
// Its memory is taken when the first gradient of a backward arrives and let go when the results are taken out, unless
// gradients are views of it. One function changes its state; reduce() is called on all ranks in the same order.
//
//   state       what it means                                        goes on to
//   collecting  gradients are missing                                ready     (settle: the last one is in, or known
//                                                                               not to come)
//   ready       complete, waits for its turn                         reducing  (reduce); reduced (skip_reduction, only
//                                                                               of a seeded defect)
//   reducing    the collective is under way                          reduced   (wait)
//   reduced     holds the mean; slots can be read                    collecting (reset)
//   any         a backward that failed                               collecting (reset)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

enum class BucketState { collecting, ready, reducing, reduced };
const char* name_of(BucketState state);

// How buckets are averaged: over these groups one after the other (the inner axis first), then divided once.
struct Averaging {
  std::vector<comm::ProcessGroup*> groups;
  int num_ranks = 1;
  std::string owner;             // for the log and messages
  std::function<void()> before;  // runs on the stream of the collective, before it; may be empty
  device::Purpose memory = device::Purpose::communication;
};

class Bucket {
 public:
  struct Slot {
    int parameter = 0;  // index in the reducer
    Dims sizes;
    std::int64_t offset = 0;  // in elements
    bool settled = false;
    bool filled = false;  // holds a gradient of this rank
  };

  Bucket(std::vector<Slot> slots, DType dtype, device::Device device);

  BucketState state() const { return state_; }
  const std::vector<Slot>& slots() const { return slots_; }
  std::int64_t num_elements() const { return num_elements_; }
  // Whether a parameter still has the type, device and sizes that its slot was made for.
  bool fits(int slot, const Tensor& parameter) const {
    return parameter.dtype() == dtype_ && parameter.device() == device_ &&
           parameter.sizes() == slots_[index(slot)].sizes;
  }
  bool is_last_missing(int slot) const { return num_missing_ == 1 && !slots_[index(slot)].settled; }

  // In collecting: puts a gradient (a second one adds), or settles a slot for good.
  void put(int slot, const Tensor& gradient, const Averaging& how);
  void settle(int slot);
  // ready -> reducing. All ranks must agree on `agreement`. Slots without a gradient count as zero.
  void reduce(const Averaging& how, std::uint64_t agreement, std::function<std::string()> agreement_text);
  void skip_reduction(const Averaging& how);
  // reducing -> reduced: the current stream goes on after the reduction.
  void wait();
  // The mean, a view of the bucket's memory. In reduced only.
  Tensor result(int slot) const;
  void reset();

 private:
  static std::size_t index(int slot) { return static_cast<std::size_t>(slot); }
  void move_to(BucketState next);
  void take_memory(const Averaging& how);
  void fill_gaps();
  Tensor slot_view(int slot) const;

  BucketState state_ = BucketState::collecting;
  std::vector<Slot> slots_;
  DType dtype_;
  device::Device device_;
  std::int64_t num_elements_ = 0;
  int num_missing_ = 0;
  Tensor flat_;
  std::vector<comm::Work> works_;
  device::Event divided_;  // after the division that follows the collectives, where there is one
};

}  // namespace lockstep::parallel
