#include "engine/comm/nccl_groups.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include <unistd.h>

#include "engine/comm/protocol.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm {

namespace nccl {

namespace {
std::optional<Calls*>& in_place() {
  static std::optional<Calls*> stand_in;
  return stand_in;
}
}  // namespace

Calls* calls() { return in_place().value_or(library_calls()); }
bool has(const Sum& sum) {
  const bool adds = sum.op == ReduceOp::sum || sum.op == ReduceOp::mean || sum.op == ReduceOp::product;
  return adds && sum.dtype != DType::boolean;
}
void replace_calls(Calls* stand_in) { in_place() = stand_in; }
void restore_calls() { in_place().reset(); }

}  // namespace nccl

namespace {

// Asks `done` until it is true, each time after an eighth of the time that has passed (10 to 500 us). Throws when an
// error ends the collective.
template <class F>
void wait_until_done(IssuedCollective& issued, const F& done) {
  const std::int64_t start = now_ns();
  while (!done()) {
    check_usable_still(issued, start);
    ::usleep(static_cast<useconds_t>(std::clamp<std::int64_t>((now_ns() - start) / 8000, 10, 500)));
  }
}

}  // namespace

NcclGroup::NcclGroup() : nccl_(*nccl::calls()), cuda_(device::cuda::calls()) {}

NcclGroup::~NcclGroup() {
  if (handle_ != nullptr) nccl_.destroy(handle_);
  for (device::cuda::EventHandle event : {begin_, event_})
    if (event != nullptr) cuda_.destroy_event(event);
}

std::int64_t NcclGroup::open(IssuedCollective& issued, nccl::StreamHandle stream, std::int64_t meeting) {
  if (handle_ != nullptr) return meeting;
  // The id is in the slot: collectives on other streams may open the group's other communicators meanwhile.
  Slot& slot = issued.slot();
  nccl::UniqueId id{};
  static_assert(sizeof slot.nccl_id == sizeof id.bytes);
  if (issued.me == 0) {
    id = nccl_.unique_id();
    std::memcpy(slot.nccl_id, id.bytes, sizeof id.bytes);
  }
  meet_members(issued, meeting);
  std::memcpy(id.bytes, slot.nccl_id, sizeof id.bytes);
  meet_members(issued, meeting + 1);
  stream_ = stream;
  for (device::cuda::EventHandle* event : {&begin_, &event_})
    if (*event == nullptr) *event = cuda_.create_event(false);
  handle_ = nccl_.create(issued.group->size, issued.me, id);
  wait_for_calls(issued);
  return meeting + 2;
}

void NcclGroup::send(const std::byte* from, std::size_t bytes, int peer) {
  if (bytes > 0) nccl_.send(from, bytes, peer, handle_, stream_);
}
void NcclGroup::receive(std::byte* to, std::size_t bytes, int peer) {
  if (bytes > 0) nccl_.receive(to, bytes, peer, handle_, stream_);
}

void NcclGroup::all_reduce(const std::byte* from, std::byte* to, std::int64_t count, const nccl::Sum& sum) {
  nccl_.all_reduce(from, to, static_cast<std::size_t>(count), sum, handle_, stream_);
}
void NcclGroup::reduce_scatter(const std::byte* from, std::byte* to, std::int64_t count, const nccl::Sum& sum) {
  nccl_.reduce_scatter(from, to, static_cast<std::size_t>(count), sum, handle_, stream_);
}

void NcclGroup::end_failed_step() noexcept {
  try {
    nccl_.group_end();
  } catch (const ResourceError&) {
    // It repeats the error of the call.
  }
}

void NcclGroup::wait_for_calls(IssuedCollective& issued) {
  wait_until_done(issued, [&] { return nccl_.poll(handle_); });
}

void NcclGroup::note_begin() { cuda_.record_event(begin_, stream_); }

void NcclGroup::wait_for_stream(IssuedCollective& issued) {
  cuda_.record_event(event_, stream_);
  bool moves = false;
  wait_until_done(issued, [&] {
    nccl_.poll(handle_);
    if (cuda_.event_done(event_)) return true;
    if (!moves && cuda_.event_done(begin_)) {
      moves = true;
      note_moving(issued);
    }
    return false;
  });
  if (!moves) note_moving(issued);  // peers that wait for others still read it
}

void NcclGroup::abort() noexcept {
  if (handle_ != nullptr) nccl_.abort(handle_);
  handle_ = nullptr;
}

void NcclGroups::note_stream(IssuedCollective& issued, nccl::StreamHandle stream) {
  if (issued.me >= Slot::max_gpus) return;  // of() refuses the group
  const std::lock_guard lock(mutex_);
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  // A rank has at most 16 streams.
  issued.slot().nccl_streams[issued.me] = static_cast<std::uint8_t>(found - streams_.begin());
  if (found == streams_.end()) streams_.push_back(stream);
}

NcclGroup& NcclGroups::of(const IssuedCollective& issued) {
  const int size = issued.group->size;
  LOCKSTEP_CHECK(size <= Slot::max_gpus, "a group of ", size, " ranks with a GPU each");
  const std::uint8_t* const first = issued.slot().nccl_streams;
  const Key key(issued.group, std::vector<std::uint8_t>(first, first + size));
  const std::lock_guard lock(mutex_);
  std::unique_ptr<NcclGroup>& entry = groups_[key];
  if (entry == nullptr) entry = std::make_unique<NcclGroup>();
  return *entry;
}

}  // namespace lockstep::comm
