#include "engine/parallel/bucket.hpp"

#include <exception>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/division.hpp"
#include "engine/parallel/waits.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

const char* name_of(BucketState state) {
  static constexpr const char* names[] = {"collecting", "ready", "reducing", "reduced"};
  return names[static_cast<int>(state)];
}

Bucket::Bucket(std::vector<Slot> slots, DType dtype, device::Device device)
    : slots_(std::move(slots)), dtype_(dtype), device_(device), num_open_(static_cast<int>(slots_.size())) {
  for (Slot& slot : slots_) {
    slot.offset = num_elements_;
    num_elements_ = checked_add(num_elements_, lockstep::num_elements(slot.sizes), "bucket");
  }
}

void Bucket::move_to(BucketState next) {
  const bool allowed = next == BucketState::collecting || static_cast<int>(next) == static_cast<int>(state_) + 1;
  LOCKSTEP_CHECK(allowed, "a bucket cannot go from ", name_of(state_), " to ", name_of(next));
  state_ = next;
}

void Bucket::allocate(const Averaging& how) {
  if (flat_.defined()) return;
  const device::PurposeScope purpose(how.memory, &how.owner);
  flat_ = empty({num_elements_}, dtype_, device_);
}

Tensor Bucket::slot_view(int slot) const {
  const Slot& at = slots_[index(slot)];
  return as_strided(flat_, at.sizes, contiguous_strides(at.sizes), at.offset);
}

void Bucket::put(int slot, const Tensor& gradient, const Averaging& how) {
  LOCKSTEP_CHECK(state_ == BucketState::collecting && !slots_[index(slot)].settled, "slot ", slot,
                 " of a bucket that is ", name_of(state_));
  allocate(how);
  write(slot, gradient);
  slots_[index(slot)].filled = true;
}

void Bucket::write(int slot, const Tensor& gradient) {
  if (defect_armed(Defect::replicate_reduces_early) && num_open_ == 1) [[unlikely]]
    raw::zero_(slot_view(slot));  // as if the reduction had begun before the last gradient arrived
  else if (slots_[index(slot)].filled)
    raw::add_(slot_view(slot), gradient);
  else
    raw::copy_(slot_view(slot), gradient);
}

void Bucket::settle(int slot) {
  LOCKSTEP_CHECK(state_ == BucketState::collecting, "a slot of a bucket that is ", name_of(state_));
  if (std::exchange(slots_[index(slot)].settled, true)) return;
  if (--num_open_ == 0) move_to(BucketState::ready);
}

void Bucket::fill_gaps() {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot)
    if (!slots_[slot].filled) raw::zero_(slot_view(static_cast<int>(slot)));
}

void Bucket::reduce(std::span<comm::ProcessGroup* const> groups, const Averaging& how, std::uint64_t agreement,
                    std::function<std::string()> content_text) {
  move_to(BucketState::reducing);
  allocate(how);
  fill_gaps();

  device::Stream& stream = device::stream(device_, device::Role::all_reduce);
  if (how.before) {
    const device::StreamScope scope(stream);
    how.before();
  }
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.stream = &stream;  // the collective waits for the current stream, which copied the gradients in
  call.owner = how.owner;
  call.content_digest = agreement;
  call.content_text = std::move(content_text);
  const Division division = replicate_division(groups.size(), how.num_ranks);
  const comm::ReduceOp op = division.within_collective ? comm::ReduceOp::mean : comm::ReduceOp::sum;
  for (comm::ProcessGroup* group : groups) works_.push_back(comm::all_reduce(*group, flat_, op, call));
  if (division.after != 1.0) {
    const device::StreamScope scope(stream);
    raw::div_(flat_, division.after);
    divided_ = stream.record();
  }
}

void Bucket::wait() {
  move_to(BucketState::reduced);
  device::Stream& current = device::current_stream(device_);
  for (const comm::Work& work : works_) parallel::wait(WaitEdge::compute_for_bucket_all_reduce, current, work);
  if (divided_.defined()) parallel::wait(WaitEdge::compute_for_bucket_division, current, divided_);
}

Tensor Bucket::result(int slot) const {
  LOCKSTEP_CHECK(state_ == BucketState::reduced, "the results of a bucket that is ", name_of(state_));
  return slot_view(slot);
}

void Bucket::reset() {
  if (state_ == BucketState::reducing) wait();
  move_to(BucketState::collecting);
  for (Slot& slot : slots_) slot.settled = slot.filled = false;
  num_open_ = static_cast<int>(slots_.size());
  flat_ = Tensor();
  works_.clear();
  divided_ = device::Event();
}

void Bucket::abandon() noexcept {
  if (state_ != BucketState::reducing) return;
  try {
    wait();
  } catch (const std::exception&) {
    // A collective that has failed writes nothing any more.
  }
}

}  // namespace lockstep::parallel
