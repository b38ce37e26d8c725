#include "engine/parallel/bucket.hpp"

#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

const char* name_of(BucketState state) {
  static constexpr const char* names[] = {"collecting", "ready", "reducing", "reduced"};
  return names[static_cast<int>(state)];
}

Bucket::Bucket(std::vector<Slot> slots, DType dtype, device::Device device)
    : slots_(std::move(slots)), dtype_(dtype), device_(device), num_missing_(static_cast<int>(slots_.size())) {
  for (Slot& slot : slots_) {
    slot.offset = num_elements_;
    num_elements_ = checked_add(num_elements_, lockstep::num_elements(slot.sizes), "bucket");
  }
}

void Bucket::move_to(BucketState next) {
  using enum BucketState;
  const bool allowed = (state_ == collecting && next == ready) || (state_ == ready && next == reducing) ||
                       (state_ == reducing && next == reduced) || next == collecting ||
                       (state_ == ready && next == reduced && defect_armed(Defect::replicate_bucket_not_sent));
  LOCKSTEP_CHECK(allowed, "a bucket cannot go from ", name_of(state_), " to ", name_of(next));
  state_ = next;
}

void Bucket::take_memory(const Averaging& how) {
  if (flat_.defined()) return;
  const device::PurposeScope purpose(how.memory);
  flat_ = empty({num_elements_}, dtype_, device_);
}

Tensor Bucket::slot_view(int slot) const {
  const Slot& at = slots_[index(slot)];
  return as_strided(flat_, at.sizes, contiguous_strides(at.sizes), at.offset);
}

void Bucket::put(int slot, const Tensor& gradient, const Averaging& how) {
  LOCKSTEP_CHECK(state_ == BucketState::collecting && !slots_[index(slot)].settled, "slot ", slot,
                 " of a bucket that is ", name_of(state_));
  take_memory(how);
  if (slots_[index(slot)].filled)
    raw::add_(slot_view(slot), gradient);
  else
    raw::copy_(slot_view(slot), gradient);
  slots_[index(slot)].filled = true;
}

void Bucket::settle(int slot) {
  LOCKSTEP_CHECK(state_ == BucketState::collecting, "a slot of a bucket that is ", name_of(state_));
  if (std::exchange(slots_[index(slot)].settled, true)) return;
  if (--num_missing_ == 0) move_to(BucketState::ready);
}

void Bucket::fill_gaps() {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot)
    if (!slots_[slot].filled) raw::zero_(slot_view(static_cast<int>(slot)));
}

void Bucket::skip_reduction(const Averaging& how) {
  move_to(BucketState::reduced);
  take_memory(how);
  fill_gaps();
}

void Bucket::reduce(const Averaging& how, std::uint64_t agreement, std::function<std::string()> agreement_text) {
  move_to(BucketState::reducing);
  take_memory(how);
  fill_gaps();

  device::Stream& stream = device::stream(device_, device::Role::all_reduce);
  if (how.before) {
    const device::StreamScope scope(stream);
    how.before();
  }
  comm::Call call;
  call.family = comm::Family::data_parallel;
  call.async = true;
  call.stream = &stream;
  call.owner = how.owner;
  call.agreement = agreement;
  call.agreement_text = std::move(agreement_text);
  const bool divide = !defect_armed(Defect::replicate_no_division);
  // One group divides within its collective; after several the whole sum is divided here.
  const bool mean_within = how.groups.size() == 1 && divide;
  for (comm::ProcessGroup* group : how.groups)
    works_.push_back(comm::all_reduce(*group, flat_, mean_within ? comm::ReduceOp::mean : comm::ReduceOp::sum, call));
  const bool divides_again = defect_armed(Defect::replicate_divides_twice);
  if ((divide && !mean_within) || divides_again) {
    const device::StreamScope scope(stream);
    if (divide && !mean_within) raw::div_(flat_, how.num_ranks);
    if (divides_again) raw::div_(flat_, how.num_ranks);
    divided_ = stream.record();
  }
}

void Bucket::wait() {
  move_to(BucketState::reduced);
  if (defect_armed(Defect::replicate_wait_left_out)) [[unlikely]]
    return;
  for (const comm::Work& work : works_) work.wait();
  if (divided_.defined()) device::current_stream(device_).wait(divided_);
}

Tensor Bucket::result(int slot) const {
  LOCKSTEP_CHECK(state_ == BucketState::reduced, "the results of a bucket that is ", name_of(state_));
  return slot_view(slot);
}

void Bucket::reset() {
  move_to(BucketState::collecting);
  for (Slot& slot : slots_) slot.settled = slot.filled = false;
  num_missing_ = static_cast<int>(slots_.size());
  flat_ = Tensor();
  works_.clear();
  divided_ = device::Event();
}

}  // namespace lockstep::parallel
