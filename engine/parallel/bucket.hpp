// A bucket: a flat buffer of gradients that are averaged over the ranks together.
//
// The bucket allocates its memory when the first gradient of a backward arrives. reset() drops the memory; gradients
// that are views of the bucket keep it alive. Only move_to() changes the state. All ranks call reduce() on their
// buckets in the same order.
//
//   state       meaning                                      next state
//   collecting  slots are open                               ready      (settle: the last open slot is settled)
//   ready       complete, not yet reduced                    reducing   (reduce)
//   reducing    the all-reduces are issued                   reduced    (wait)
//   reduced     the memory holds the mean; result() reads it collecting (reset)
//   any         after a backward that failed                 collecting (reset)
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::parallel {

enum class BucketState { collecting, ready, reducing, reduced };
const char* name_of(BucketState state);

// How buckets are averaged.
struct Averaging {
  int num_ranks = 1;             // of all process groups together: the divisor of the mean
  std::string owner;             // for the log and messages
  std::function<void()> before;  // runs on the stream of the all-reduce before it; may be empty
  device::Purpose memory = device::Purpose::communication;
};

class Bucket {
 public:
  struct Slot {
    int parameter = 0;  // index in the reducer
    Dims sizes;
    std::int64_t offset = 0;  // in elements
    bool settled = false;     // nothing more comes in this backward
    bool filled = false;      // holds a gradient of this rank
  };

  Bucket(std::vector<Slot> slots, DType dtype, device::Device device);

  BucketState state() const { return state_; }
  const std::vector<Slot>& slots() const { return slots_; }
  std::int64_t num_elements() const { return num_elements_; }
  // Whether a parameter still has the type, device and sizes of its slot.
  bool fits(int slot, const Tensor& parameter) const {
    return parameter.dtype() == dtype_ && parameter.device() == device_ &&
           parameter.sizes() == slots_[index(slot)].sizes;
  }

  // In collecting only. put() copies a gradient into its slot; a second gradient is added. settle() closes a slot.
  void put(int slot, const Tensor& gradient, const Averaging& how);
  void settle(int slot);
  // ready -> reducing. Slots without a gradient count as zero. Sums over the process groups one after the other (the
  // inner axis first) and divides once. The digest `agreement` must be equal on all ranks.
  void reduce(std::span<comm::ProcessGroup* const> groups, const Averaging& how, std::uint64_t agreement,
              std::function<std::string()> content_text);
  // reducing -> reduced. Later launches on the current stream run after the reduction.
  void wait();
  // The mean of a slot, of the slot's sizes, as a view of the bucket's memory. In reduced only.
  Tensor result(int slot) const;
  // After a backward that failed, a bucket may still be reducing. Its memory is freed after that.
  void reset();
  // Before the end of a bucket: its memory is then freed after the collectives that use it. It may wait for the peers.
  void abandon() noexcept;

 private:
  static std::size_t index(int slot) { return static_cast<std::size_t>(slot); }
  void move_to(BucketState next);
  void allocate(const Averaging& how);
  void fill_gaps();
  void write(int slot, const Tensor& gradient);
  Tensor slot_view(int slot) const;

  BucketState state_ = BucketState::collecting;
  std::vector<Slot> slots_;
  DType dtype_;
  device::Device device_;
  std::int64_t num_elements_ = 0;
  int num_open_ = 0;  // slots that are not settled
  Tensor flat_;
  std::vector<comm::Work> works_;
  device::Event divided_;  // recorded if a division follows the collectives
};

}  // namespace lockstep::parallel
