// Issuing a collective: recorder and log, the streams' order, the two halves of the launch, and waiting for it.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/comm/communicator.hpp"
#include "engine/comm/fingerprint.hpp"
#include "engine/comm/messages.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

struct Work::State {
  std::shared_ptr<Issued> issued;
  device::Event event;
  device::Device device;
  bool runs_inline = true;
  // The buffers live until somebody has waited: only then is their next use ordered after the collective.
  std::array<device::MemoryPtr, 2> kept;
};

namespace {

void copy_text(char* to, std::size_t capacity, const std::string& text) {
  const std::size_t size = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

device::Role role_of(Operation operation, bool async) {
  switch (operation) {
    // On the compute stream an asynchronous send would be waited for by the receive after it, and rings would lock.
    case Operation::send:
      return async ? device::Role::copy_out : device::Role::compute;
    case Operation::receive:
      return async ? device::Role::copy_in : device::Role::compute;
    case Operation::all_gather:
      return device::Role::all_gather;
    case Operation::reduce_scatter:
      return device::Role::reduce_scatter;
    case Operation::all_reduce:
      return device::Role::all_reduce;
    default:
      return device::Role::compute;
  }
}

const char* launch_name(Operation operation) { return name_of(operation).data(); }

device::Access access_of(const Tensor& tensor, device::Mode mode) {
  if (tensor.num_elements() == 0) return {nullptr, 0, 0, mode};
  device::Access access = read(tensor);
  access.mode = mode;
  return access;
}

std::int64_t elements_of(const Tensor* tensor) { return tensor == nullptr ? 0 : tensor->num_elements(); }

// What the engine itself issues belongs to one module on all ranks: blocks of the same sizes that run in another order
// must not mix. What scenarios issue may be named as they like.
std::uint64_t agreement_of(const Call& call) {
  std::uint64_t digest = call.agreement;
  if (call.family != Family::data_parallel && call.family != Family::start_up) return digest;
  if (defect_armed(Defect::shard_owner_not_compared)) [[unlikely]]
    return digest;
  for (const char c : call.owner) digest = (digest ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return digest;
}

// The recorder's entry, the log's, and the sequence number, all fixed now.
std::shared_ptr<Issued> note(const Plan& plan, const Call& call, std::uint8_t kind, std::int64_t elements,
                             std::int64_t bytes) {
  Communicator& communicator = Communicator::current();
  const RankContext& context = communicator.context();
  auto issued = std::make_shared<Issued>();
  issued->rank = communicator.state();
  issued->group = plan.meeting->control;
  issued->me = plan.me;
  issued->sequence = plan.meeting->sequence++;
  if (call.in_round) issued->round = plan.meeting->rounds + 1;
  issued->fingerprint.kind =
      kind == static_cast<std::uint8_t>(Operation::receive) ? static_cast<std::uint8_t>(Operation::send) : kind;
  issued->fingerprint.dtype = static_cast<std::uint8_t>(plan.dtype);
  issued->fingerprint.op = static_cast<std::uint8_t>(plan.op);
  issued->fingerprint.root = plan.root;
  issued->fingerprint.count = plan.count;
  issued->agreement_text = call.agreement_text;
  issued->counted = call.family != Family::uncounted;

  communicator.state()->note_begin();
  RankControl& control = communicator.state()->control();
  issued->record_number = control.num_records.load(std::memory_order_relaxed);
  Record& record = issued->record();
  record.state.store(CollectiveState::issued, std::memory_order_relaxed);
  record.group = communicator.world().offset_of(issued->group);
  record.sequence = issued->sequence;
  record.elements = elements;
  record.bytes = bytes;
  record.issued_ns = now_ns();
  record.finished_ns = 0;
  record.kind = kind;
  record.dtype = issued->fingerprint.dtype;
  record.op = issued->fingerprint.op;
  record.family = static_cast<std::uint8_t>(call.family);
  record.tells = !call.agreement_text ? Tells::nothing : call.async ? Tells::later : Tells::at_once;
  record.phase = static_cast<std::uint8_t>(communicator.phase);
  record.root = plan.root;
  record.scenario_line = context.scenario_line;
  copy_text(record.axis, sizeof record.axis, plan.group->axis());
  copy_text(record.owner, sizeof record.owner, call.owner);
  note_terms(record, plan, call, communicator);
  record.agreement = agreement_of(call);
  Digest digest;
  digest.add(record.terms_digest);
  digest.add(record.agreement);
  issued->fingerprint.digest = digest.value();
  control.num_records.store(issued->record_number + 1, std::memory_order_release);

  if (issued->counted) {
    LogEntry entry;
    entry.sequence = issued->sequence;
    entry.operation = plan.operation;
    entry.family = call.family;
    entry.phase = communicator.phase;
    entry.dtype = plan.dtype;
    entry.op = plan.op;
    entry.axis = plan.group->axis();
    entry.group_size = plan.group->size();
    entry.group_id = issued->group->id;
    entry.bytes = bytes;
    entry.owner = call.owner;
    entry.scenario_line = context.scenario_line;
    communicator.log.push_back(std::move(entry));
  }
  return issued;
}

std::string call_name(const Plan& plan, const Call& call) {
  return str(name_of(plan.operation), call.owner.empty() ? "" : " for ", call.owner);
}

}  // namespace

Work Engine::issue(const Plan& plan, const Call& call) {
  Communicator& communicator = Communicator::current();
  check_usable(*communicator.state(), *plan.meeting->control, call_name(plan, call));
  const Tensor& any = plan.output != nullptr ? *plan.output : *plan.input;
  const device::Device device = any.device();
  device::Stream& caller = device::current_stream(device);
  device::Stream& stream =
      call.stream != nullptr ? *call.stream : device::stream(device, role_of(plan.operation, call.async));
  if (&stream != &caller) stream.wait(caller.record());
  communicator.count_waiter(stream);

  std::array<device::Access, 2> accesses;
  std::size_t num_accesses = 0;
  auto state = std::make_shared<Work::State>();
  int input = -1, output = -1;
  if (plan.input != nullptr) {
    input = static_cast<int>(num_accesses);
    const bool in_place = plan.input == plan.output;
    accesses[num_accesses] = access_of(*plan.input, in_place ? device::Mode::update : device::Mode::read);
    state->kept[num_accesses++] = plan.input->storage()->memory_ptr();
    if (in_place) output = input;
  }
  if (plan.output != nullptr && output < 0) {
    output = static_cast<int>(num_accesses);
    accesses[num_accesses] = access_of(*plan.output, device::Mode::write);
    state->kept[num_accesses++] = plan.output->storage()->memory_ptr();
  }
  if (plan.output != nullptr) plan.output->bump_version();

  const std::int64_t elements = std::max(elements_of(plan.input), elements_of(plan.output));
  std::shared_ptr<Issued> issued = note(plan, call, static_cast<std::uint8_t>(plan.operation), elements,
                                        bounded_product(elements, static_cast<std::int64_t>(size_of(plan.dtype))));
  issued->on_rank_thread = stream.runs_inline();
  if (call.async && stream.runs_inline()) keep_deferred(issued);
  device::launch_deferred(
      stream, launch_name(plan.operation), std::span<const device::Access>(accesses.data(), num_accesses),
      [issued, input, output](const device::Pointers& pointers) {
        if (input >= 0) issued->input = pointers.at(static_cast<std::size_t>(input));
        if (output >= 0) issued->output = pointers.at(static_cast<std::size_t>(output));
        if (try_arrive(*issued) || !issued->on_rank_thread) return;
        finish_predecessor(*issued, false);
        try_arrive(*issued);
      },
      [issued](const device::Pointers&) { run(*issued); });
  state->issued = std::move(issued);
  state->event = stream.record();
  state->device = device;
  state->runs_inline = stream.runs_inline();
  Work work;
  work.state_ = std::move(state);
  if (!call.async) work.wait();
  return work;
}

void Engine::issue_on_host(const Plan& plan, const Call& call) {
  check_usable(*Communicator::current().state(), *plan.meeting->control, call_name(plan, call));
  const std::shared_ptr<Issued> issued = note(plan, call, static_cast<std::uint8_t>(plan.operation), 0, 0);
  run(*issued);
}

std::vector<std::string> Engine::exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose) {
  Plan plan;
  plan.group = &group;
  plan.meeting = &meeting_of(group);
  plan.me = group.rank();
  plan.count = static_cast<std::int64_t>(mine.size());
  Call call;
  call.family = Family::uncounted;
  call.owner = purpose;
  check_usable(*Communicator::current().state(), *plan.meeting->control, "exchange");
  std::vector<std::string> all(static_cast<std::size_t>(group.size()));
  const std::shared_ptr<Issued> issued = note(plan, call, exchange_kind, plan.count, plan.count);
  issued->exchange_input = &mine;
  issued->exchanged = &all;
  run(*issued);
  return all;
}

void Work::wait() const {
  if (state_) wait(device::current_stream(state_->device));
}

void Work::wait(device::Stream& stream) const {
  if (!state_) return;
  stream.wait(state_->event);
  // An inline stream that is waited for by itself, or whose collective somebody else finished: errors come here.
  if (state_->runs_inline) run(*state_->issued);
  for (device::MemoryPtr& memory : state_->kept) memory.reset();
}

void Work::synchronize() const {
  if (!state_) return;
  state_->event.synchronize();
  if (state_->runs_inline) run(*state_->issued);
  for (device::MemoryPtr& memory : state_->kept) memory.reset();
}

bool Work::done() const {
  return !state_ || (state_->runs_inline ? is_finished(*state_->issued) : state_->event.done());
}

device::Event Work::event() const { return state_ ? state_->event : device::Event(); }

}  // namespace lockstep::comm
