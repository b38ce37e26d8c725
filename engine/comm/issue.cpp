// Issues collectives: writes the flight recorder and the log, orders the streams, launches the arrival and the run of
// the collective, and waits for it.
#include <algorithm>
#include <array>

#include "engine/comm/communicator.hpp"
#include "engine/comm/fingerprint.hpp"
#include "engine/comm/messages.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"
#include "engine/device/scratch.hpp"

namespace lockstep::comm {

struct Work::State {
  std::shared_ptr<IssuedCollective> issued;
  device::Event event;
  device::Device device;
  bool runs_inline = true;
  // Keeps the buffers alive until a stream has waited. Only then is their next use ordered after the collective.
  std::array<device::MemoryPtr, 2> buffers;
};

namespace {

device::Role role_of(Operation operation, bool async) {
  switch (operation) {
    // On the compute stream, a receive would wait for an asynchronous send issued before it, and a ring of ranks that
    // all send first would deadlock.
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
    // On the compute stream, an asynchronous collective would hold up all work until its peers come. Every later read
    // would be ordered after it, so that no missing wait could be found.
    default:
      return async ? device::Role::exchange : device::Role::compute;
  }
}

const char* launch_name(Operation operation) { return name_of(operation).data(); }

device::Access access_of(const Tensor& tensor, device::Mode mode) {
  if (tensor.num_elements() == 0) return {nullptr, 0, 0, mode};
  device::Access access = read(tensor);
  access.mode = mode;
  return access;
}

unsigned bit_of(device::Role role) { return 1u << static_cast<unsigned>(role); }

std::int64_t elements_of(const Tensor* tensor) { return tensor == nullptr ? 0 : tensor->num_elements(); }

// Collectives that the engine issues must belong to the same module on all ranks: blocks of equal sizes that run in
// different orders must not match. Collectives of scenarios may have different owners.
bool compares_owner(const Call& call) {
  if (defect_armed(Defect::shard_owner_not_compared)) [[unlikely]]
    return false;
  return call.family == Family::data_parallel || call.family == Family::start_up;
}

std::uint64_t content_digest_of(const Call& call) {
  return compares_owner(call) ? fnv1a(call.owner, call.content_digest) : call.content_digest;
}

Fingerprint fingerprint_of(const CollectiveRequest& request, std::uint8_t kind) {
  Fingerprint fingerprint;
  fingerprint.kind =
      kind == static_cast<std::uint8_t>(Operation::receive) ? static_cast<std::uint8_t>(Operation::send) : kind;
  fingerprint.dtype = static_cast<std::uint8_t>(request.dtype);
  fingerprint.op = static_cast<std::uint8_t>(request.op);
  if (const Tensor* any = request.output != nullptr ? request.output : request.input; any != nullptr)
    fingerprint.device = static_cast<std::uint8_t>(any->device().kind);
  fingerprint.root = request.root;
  fingerprint.count = request.count;
  return fingerprint;
}

struct Extent {
  std::int64_t elements, bytes;  // of the larger of input and output
};

// Writes the flight recorder's entry and completes the fingerprint with the digest of its terms and content.
void write_record(IssuedCollective& issued, const Communicator& communicator, const CollectiveRequest& request,
                  const Call& call, std::uint8_t kind, Extent extent) {
  RankControl& control = issued.rank->control();
  issued.record_number = control.num_records.load(std::memory_order_relaxed);
  Record& record = issued.record();
  record.state.store(CollectiveState::issued, std::memory_order_relaxed);
  record.group = communicator.world().offset_of(issued.group);
  record.sequence = issued.sequence;
  record.elements = extent.elements;
  record.bytes = extent.bytes;
  record.issued_ns = now_ns();
  record.kind = kind;
  record.dtype = issued.fingerprint.dtype;
  record.op = issued.fingerprint.op;
  record.family = static_cast<std::uint8_t>(call.family);
  record.content_text = !call.content_text ? ContentText::none
                        : call.async       ? ContentText::deferred
                                           : ContentText::at_once;
  record.phase = static_cast<std::uint8_t>(communicator.phase);
  record.root = request.root;
  record.scenario_line = communicator.context().scenario_line;
  copy_end(record.axis, request.group->axis());
  copy_text(record.owner, call.owner);
  record_terms(record, request, call, communicator);
  record.content_digest = content_digest_of(call);
  Digest digest;
  digest.add(record.terms_digest);
  digest.add(record.content_digest);
  issued.fingerprint.digest = digest.value();
  control.num_records.store(issued.record_number + 1, std::memory_order_release);
}

void add_to_log(const IssuedCollective& issued, Communicator& communicator, const CollectiveRequest& request,
                const Call& call, std::int64_t bytes) {
  LogEntry entry;
  entry.sequence = issued.sequence;
  entry.operation = request.operation;
  entry.family = call.family;
  entry.phase = communicator.phase;
  entry.dtype = request.dtype;
  entry.axis = request.group->axis();
  entry.group_size = request.group->size();
  entry.group_id = issued.group->id;
  entry.group = request.group;
  entry.bytes = bytes;
  entry.owner = call.owner;
  entry.scenario_line = communicator.context().scenario_line;
  communicator.log.push_back(std::move(entry));
}

// Takes the sequence number and writes the flight recorder's entry and the log's.
std::shared_ptr<IssuedCollective> record_complete_call(const CollectiveRequest& request, const Call& call,
                                                       std::uint8_t kind, Extent extent) {
  Communicator& communicator = Communicator::current();
  auto issued = std::make_shared<IssuedCollective>();
  issued->rank = communicator.state();
  issued->group = request.endpoint->control;
  issued->me = request.me;
  issued->sequence = request.endpoint->sequence++;
  if (call.in_round) issued->round = request.endpoint->rounds + 1;
  issued->fingerprint = fingerprint_of(request, kind);
  issued->sum_order = communicator.sum_order;
  issued->content_text = call.content_text;
  issued->counted = call.family != Family::uncounted;
  if (issued->rank->control().begun_ns.load(std::memory_order_relaxed) == 0) announce_begin();
  write_record(*issued, communicator, request, call, kind, extent);
  if (issued->counted) add_to_log(*issued, communicator, request, call, extent.bytes);
  return issued;
}

// The call, whose contents include the statements of the group.
Call with_statements(Call call, Communicator::Statements statements) {
  Digest digest;
  digest.add(call.content_digest);
  digest.add(statements.digest);
  call.content_digest = digest.value();
  call.content_text = [own = std::move(call.content_text), texts = std::move(statements.texts)] {
    std::string all = own ? own() : "";
    for (const auto& text : texts) all += str(all.empty() ? "" : ", ", text());
    return all;
  };
  return call;
}

std::shared_ptr<IssuedCollective> record_call(const CollectiveRequest& request, const Call& call, std::uint8_t kind,
                                              Extent extent) {
  if (call.family == Family::tensor_parallel) {
    Communicator::Statements stated = Communicator::current().take_statements(*request.group);
    if (stated.digest != 0)
      return record_complete_call(request, with_statements(call, std::move(stated)), kind, extent);
  }
  return record_complete_call(request, call, kind, extent);
}

// Arrives unless its slot is still in use. run() then arrives later.
void arrive_now(IssuedCollective& issued) {
  if (try_arrive(issued) || !issued.on_rank_thread) return;
  finish_predecessor(issued, false);
  try_arrive(issued);
}

std::string call_name(const CollectiveRequest& request, const Call& call) {
  return str(name_of(request.operation), call.owner.empty() ? "" : " for ", call.owner);
}

}  // namespace

Work CollectiveIssuer::issue(const CollectiveRequest& request, const Call& call) {
  Communicator& communicator = Communicator::current();
  check_usable(*communicator.state(), *request.endpoint->control, call_name(request, call));
  const Tensor& any = request.output != nullptr ? *request.output : *request.input;
  const device::Device device = any.device();
  device::Stream& caller = device::current_stream(device);
  device::Stream& stream =
      call.stream != nullptr ? *call.stream : device::stream(device, role_of(request.operation, call.async));
  // A failed stream refuses the call here, before it takes a sequence number of its group: peers do not wait for it.
  caller.rethrow_failure();
  if (&stream != &caller) stream.wait(caller.record());
  communicator.count_waiter(stream);
  RankState& own = *communicator.state();
  const bool is_apart = !device::capabilities_of(device).runs_on_host;
  if (is_apart) {
    own.open_accelerator(device.kind);
    request.endpoint->used_roles |= bit_of(stream.role());
  }

  std::array<device::Access, 3> accesses;
  std::size_t num_accesses = 0;
  auto state = std::make_shared<Work::State>();
  int input = -1, output = -1;
  if (request.input != nullptr) {
    input = static_cast<int>(num_accesses);
    const bool in_place = request.input == request.output;
    accesses[num_accesses] = access_of(*request.input, in_place ? device::Mode::update : device::Mode::read);
    state->buffers[num_accesses++] = request.input->storage()->memory_ptr();
    if (in_place) output = input;
  }
  if (request.output != nullptr && output < 0) {
    output = static_cast<int>(num_accesses);
    accesses[num_accesses] = access_of(*request.output, device::Mode::write);
    state->buffers[num_accesses++] = request.output->storage()->memory_ptr();
  }
  if (request.output != nullptr) request.output->bump_version();
  std::shared_ptr<HostCopies> copies;
  if (is_apart && request.endpoint->control->spans_hosts != 0) {
    const auto bytes_of = [&](int at) { return at < 0 ? 0 : accesses[static_cast<std::size_t>(at)].bytes; };
    const HostCopies::Sizes sizes{bytes_of(input), bytes_of(output), input == output};
    copies = std::make_shared<HostCopies>(own.pinned_memory.take(device, sizes.total()), sizes);
  }

  // Freed in stream order when this function returns.
  device::MemoryPtr scratch;
  int scratch_access = -1;
  const auto kind = static_cast<std::uint8_t>(request.operation);
  if (const std::size_t bytes = is_apart ? scratch_bytes_of(communicator.world(), *request.endpoint->control,
                                                            fingerprint_of(request, kind), communicator.sum_order)
                                         : 0;
      bytes > 0) {
    scratch = device::allocate_scratch(stream, bytes);
    scratch_access = static_cast<int>(num_accesses);
    accesses[num_accesses++] = {scratch.get(), 0, bytes, device::Mode::write};
  }

  const std::int64_t elements = std::max(elements_of(request.input), elements_of(request.output));
  std::shared_ptr<IssuedCollective> issued = record_call(
      request, call, kind, {elements, bounded_product(elements, static_cast<std::int64_t>(size_of(request.dtype)))});
  issued->on_rank_thread = stream.runs_inline();
  if (call.async && stream.runs_inline()) add_deferred(issued);
  // No worker ends an asynchronous barrier that may still use its slot.
  if (!issued->on_rank_thread) finish_predecessor(*issued, true);
  const std::span<const device::Access> accessed(accesses.data(), num_accesses);
  auto start = [issued, input, output, scratch_access, copies](const device::Pointers& pointers) {
    if (input >= 0) issued->input = pointers.at(static_cast<std::size_t>(input));
    if (output >= 0) issued->output = pointers.at(static_cast<std::size_t>(output));
    if (scratch_access >= 0) issued->scratch = pointers.at(static_cast<std::size_t>(scratch_access));
    issued->execution = pointers.execution();
    if (copies) copies->copy_in(*issued);
    arrive_now(*issued);
  };
  auto finish = [issued, copies](const device::Pointers&) {
    run(*issued);
    if (copies) copies->copy_out(*issued);
  };
  // A collective of one rank waits for no peer, so it needs no worker. A trace shows the launch of every collective as
  // deferred.
  if (is_apart && request.group->size() == 1 && !stream.is_instrumented()) {
    device::launch(stream, launch_name(request.operation), accessed,
                   [start = std::move(start), finish = std::move(finish)](const device::Pointers& pointers) {
                     start(pointers);
                     finish(pointers);
                   });
  } else {
    device::launch_deferred(stream, launch_name(request.operation), accessed, std::move(start), std::move(finish));
  }
  state->issued = std::move(issued);
  state->event = stream.record();
  state->device = device;
  state->runs_inline = stream.runs_inline();
  Work work;
  work.state_ = std::move(state);
  if (!call.async) work.wait();
  return work;
}

Work CollectiveIssuer::issue_on_host(const CollectiveRequest& request, const Call& call) {
  check_usable(*Communicator::current().state(), *request.endpoint->control, call_name(request, call));
  const std::shared_ptr<IssuedCollective> issued =
      record_call(request, call, static_cast<std::uint8_t>(request.operation), {0, 0});
  Work work;
  // A member on another host may use the slot again before a deferred call has looked at it: no data holds it up.
  if (!call.async || request.endpoint->control->spans_hosts != 0) {
    run(*issued);
    return work;
  }
  std::vector<std::shared_ptr<IssuedCollective>>& pending = request.endpoint->on_host;
  std::erase_if(pending, [](const auto& each) { return each->ended.load(std::memory_order_acquire); });
  pending.push_back(issued);
  add_deferred(issued);
  arrive_now(*issued);
  // Its slot is in use. No stream arrives later, and the rank may end, or wait for a peer that is in this call.
  if (!issued->arrived.load(std::memory_order_relaxed)) run(*issued);
  work.state_ = std::make_shared<Work::State>();
  work.state_->issued = issued;
  return work;
}

std::vector<std::string> CollectiveIssuer::exchange(ProcessGroup& group, const std::string& mine,
                                                    const std::string& purpose) {
  CollectiveRequest request;
  request.group = &group;
  request.endpoint = &endpoint_of(group);
  request.me = group.rank();
  request.count = static_cast<std::int64_t>(mine.size());
  Call call;
  call.family = Family::uncounted;
  call.owner = purpose;
  check_usable(*Communicator::current().state(), *request.endpoint->control, "exchange");
  std::vector<std::string> all(static_cast<std::size_t>(group.size()));
  const std::shared_ptr<IssuedCollective> issued =
      record_call(request, call, exchange_kind, {request.count, request.count});
  issued->exchange_input = &mine;
  issued->exchange_output = &all;
  run(*issued);
  return all;
}

// Runs on the host and on no stream, so that it orders nothing: the order check sees as much as without it.
void CollectiveIssuer::prepare(ProcessGroup& group, device::Device device, std::span<const device::Role> roles) {
  Endpoint& endpoint = endpoint_of(group);
  const bool is_on_accelerator = device::is_accelerator(device) && !device::capabilities_of(device).runs_on_host;
  if (!is_on_accelerator || !nccl_transport().traits().can({.device_memory = true, .between_devices = true}) ||
      group.size() == 1 || endpoint.control->spans_hosts != 0)
    return;
  // The members have issued the same collectives of the group, so they leave out the same streams.
  std::string names;
  unsigned opened = 0;
  std::vector<device::Execution> streams;
  for (const device::Role role : roles) {
    if (((endpoint.used_roles | opened) & bit_of(role)) != 0) continue;
    opened |= bit_of(role);
    streams.push_back(device::stream(device, role).execution());
    names += str(names.empty() ? "" : ", ", device::name_of(role));
  }
  if (streams.empty()) return;
  Communicator& communicator = Communicator::current();
  check_usable(*communicator.state(), *endpoint.control, "preparation");
  communicator.state()->open_accelerator(device.kind);
  CollectiveRequest request;
  request.group = &group;
  request.endpoint = &endpoint;
  request.me = group.rank();
  Call call;
  call.family = Family::uncounted;
  call.content_digest = fnv1a(names);
  call.content_text = [names] { return "of the streams " + names; };
  const std::shared_ptr<IssuedCollective> issued = record_call(request, call, preparation_kind, {0, 0});
  issued->fingerprint.device = static_cast<std::uint8_t>(device.kind);
  issued->prepared = std::move(streams);
  endpoint.used_roles |= opened;
  run(*issued);
}

void Work::wait() const {
  if (state_) wait(device::current_stream(state_->device));
}

void Work::wait(device::Stream& stream) const {
  if (!state_) return;
  stream.wait(state_->event);
  // On an inline stream the event wait may not have run the collective, so its errors are thrown here.
  if (state_->runs_inline) run(*state_->issued);
  for (device::MemoryPtr& memory : state_->buffers) memory.reset();
}

void Work::synchronize() const {
  if (!state_) return;
  state_->event.synchronize();
  if (state_->runs_inline) run(*state_->issued);
  for (device::MemoryPtr& memory : state_->buffers) memory.reset();
}

device::Event Work::event() const { return state_ ? state_->event : device::Event(); }

}  // namespace lockstep::comm
