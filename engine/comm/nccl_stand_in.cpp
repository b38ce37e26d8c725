#include "engine/comm/nccl_stand_in.hpp"

#include <string>
#include <utility>

#include <unistd.h>

#include "engine/comm/nccl_step.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm::nccl {

// The group of calls that a thread has open.
struct StandIn::OpenGroup {
  int depth = 0;
  std::shared_ptr<StandInStep> step;
};

StandIn::OpenGroup& StandIn::open_group() {
  thread_local OpenGroup group;
  return group;
}

namespace {

void require_one_per_device(const Mail& mail, int size) {
  for (int a = 0; a < size; ++a)
    for (int b = a + 1; b < size; ++b)
      if (mail.members[a].device.load() == mail.members[b].device.load())
        throw ResourceError(
            str("invalid usage: members ", a, " and ", b, " both use device ", mail.members[a].device.load()),
            "use a device per member");
}

}  // namespace

StandIn::~StandIn() {
  for (const auto& [number, file] : files_) ::close(file);
}

// ---- communicators

UniqueId StandIn::unique_id() {
  const MailId made = make_mail(++num_ids_);
  const std::lock_guard lock(mutex_);
  files_[made.number] = made.file;
  return unique_id_of(made);
}

Handle StandIn::create(int size, int member, const UniqueId& id) {
  if (size > Mail::max_members)
    throw ResourceError(str("a communicator of ", size, " members"), str("use at most ", int{Mail::max_members}));
  const MailId mail = mail_of(id);
  auto made = std::make_shared<StandInCommunicator>(mail, member, size, cuda_.device_of_thread());
  Mail::Member& own = made->mail.members[member];
  own.device.store(made->device);
  if (own.state.exchange(MemberState::present) != MemberState::absent)
    throw ResourceError(str("invalid usage: the communicator has a member ", member), "give each communicator an id");
  StandInCommunicator* const handle = made.get();
  const std::lock_guard lock(mutex_);
  open_[handle] = std::move(made);
  return handle;
}

bool StandIn::poll(Handle handle) {
  const Owner communicator = of(handle);
  {
    const std::lock_guard lock(communicator->mutex);
    if (!communicator->error.empty())
      throw ResourceError("invalid usage: " + communicator->error, "let the members agree on the sizes");
  }
  if (communicator->is_complete) return true;
  for (int member = 0; member < communicator->size; ++member)
    if (communicator->mail.members[member].state.load() == MemberState::absent) return false;
  require_one_per_device(communicator->mail, communicator->size);
  communicator->is_complete = true;
  forget(*communicator);
  return true;
}

// All members have opened the file of the id.
void StandIn::forget(const StandInCommunicator& complete) {
  if (complete.id.process != ::getpid()) return;
  const std::lock_guard lock(mutex_);
  if (files_.erase(complete.id.number) > 0) ::close(complete.id.file);
}

void StandIn::abort(Handle handle) noexcept {
  const Owner communicator = of(handle);
  communicator->is_aborted = true;  // its work ends; the stream goes on
  communicator->mail.members[communicator->member].state = MemberState::aborted;
  end(handle);
}

void StandIn::destroy(Handle handle) noexcept { end(handle); }

void StandIn::end(Handle handle) noexcept {
  const std::lock_guard lock(mutex_);
  open_.erase(static_cast<StandInCommunicator*>(handle));
}

StandIn::Owner StandIn::of(Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(static_cast<StandInCommunicator*>(handle));
  LOCKSTEP_CHECK(found != open_.end(), "a call with a communicator that does not exist");
  return found->second;
}

// ---- steps

void StandIn::group_start() { ++open_group().depth; }

void StandIn::group_end() {
  OpenGroup& group = open_group();
  LOCKSTEP_CHECK(group.depth > 0, "group_end() without group_start()");
  if (--group.depth > 0) return;
  if (const auto step = std::exchange(group.step, nullptr); step != nullptr) StandInStep::enqueue(step);
}

void StandIn::add(const StandInCall& call, Handle handle, StreamHandle stream) {
  const Owner communicator = of(handle);
  if (call.peer < 0 || call.peer >= communicator->size)
    throw ResourceError(str("invalid argument: member ", call.peer, " of ", communicator->size), "name a member");
  if (cuda_.device_of(stream) != communicator->device)
    throw ResourceError(str("invalid argument: a stream of device ", cuda_.device_of(stream),
                            ", and a communicator of device ", communicator->device),
                        "use the streams of the communicator's device");
  OpenGroup& group = open_group();
  if (group.depth > 0 && group.step != nullptr) {
    LOCKSTEP_CHECK(group.step->is_on(*communicator, stream), "a group of calls with several communicators or streams");
    return group.step->add(call);
  }
  group.step = std::make_shared<StandInStep>(cuda_, communicator, stream);
  group.step->add(call);
  if (group.depth == 0) StandInStep::enqueue(std::exchange(group.step, nullptr));
}

void StandIn::send(const void* from, std::size_t bytes, int peer, Handle handle, StreamHandle stream) {
  add({.kind = StandInCall::Kind::send,
       .peer = peer,
       .bytes = bytes,
       .from = cuda_.find(from, bytes),
       .to = nullptr,
       .sum = {}},
      handle, stream);
}

void StandIn::receive(void* to, std::size_t bytes, int peer, Handle handle, StreamHandle stream) {
  cuda_.find(to, bytes);
  add({.kind = StandInCall::Kind::receive,
       .peer = peer,
       .bytes = bytes,
       .from = {},
       .to = static_cast<std::byte*>(to),
       .sum = {}},
      handle, stream);
}

// `call` has its kind, the bytes of its input and its sum.
void StandIn::add_up(StandInCall call, const void* from, void* to, std::size_t output_bytes, Handle handle,
                     StreamHandle stream) {
  cuda_.find(to, output_bytes);
  call.from = cuda_.find(from, call.bytes);
  call.to = static_cast<std::byte*>(to);
  add(call, handle, stream);
}

void StandIn::all_reduce(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                         StreamHandle stream) {
  StandInCall call;
  call.kind = StandInCall::Kind::all_reduce;
  call.bytes = bounded_product(count, size_of(sum.dtype));
  call.sum = sum;
  add_up(call, from, to, call.bytes, handle, stream);
}

void StandIn::reduce_scatter(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                             StreamHandle stream) {
  const std::size_t shard = bounded_product(count, size_of(sum.dtype));
  StandInCall call;
  call.kind = StandInCall::Kind::reduce_scatter;
  call.bytes = bounded_product(shard, static_cast<std::size_t>(of(handle)->size));
  call.sum = sum;
  add_up(call, from, to, shard, handle, stream);
}

}  // namespace lockstep::comm::nccl
