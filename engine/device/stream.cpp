#include "engine/device/stream.hpp"

#include <array>

#include "engine/core/error.hpp"
#include "engine/device/queue.hpp"
#include "engine/device/runtime.hpp"

namespace lockstep::device {

namespace {
constexpr std::array<std::string_view, num_roles> role_names = {
    "compute", "copy_in", "all_gather", "reduce_scatter", "all_reduce", "copy_out", "exchange"};
}

std::string_view name_of(Role role) { return role_names[static_cast<std::size_t>(role)]; }

// ---- streams

Stream::~Stream() = default;

std::string Stream::name() const { return str(to_text(device_), "/", name_of(role_)); }

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->stream = state_;
  queue_->mark();
  event.state_->number = queue_->last_number();
  if (OrderCheck& order = state_->runtime->order(); order.on()) {
    order.learn_from_host(state_->clock);
    event.state_->known = state_->clock.known;
  }
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.defined() || event.state_->stream == state_) return;
  const Event::State& awaited = *event.state_;
  if (OrderCheck& order = state_->runtime->order(); order.on()) order.stream_learns(state_->clock, awaited.known);
  queue_->issue_wait(awaited.stream->queue, awaited.number);
}

void Stream::synchronize() {
  queue_->await(queue_->last_number());
  OrderCheck& order = state_->runtime->order();
  if (order.on()) order.host_learns(state_->clock.known);
}

void Stream::rethrow_failure() { queue_->rethrow_failure(); }

// ---- events

void Event::synchronize() const {
  if (!defined()) return;
  state_->stream->queue->await(state_->number);
  Runtime* runtime = state_->stream->runtime;
  if (runtime != nullptr && runtime->order().on()) runtime->order().host_learns(state_->known);
}

// ---- the rank's streams

Stream& stream(Device device, Role role) { return Runtime::current().stream(device, role); }
Stream& current_stream(Device device) { return Runtime::current().current_stream(device); }

StreamScope::StreamScope(Stream& stream)
    : previous_(Runtime::current().exchange_current(stream.device(), &stream)), device_(stream.device()) {}
StreamScope::~StreamScope() { Runtime::current().exchange_current(device_, previous_); }

void synchronize_all() { Runtime::current().synchronize_all(); }
void clear_failures() { Runtime::current().clear_failures(); }

}  // namespace lockstep::device
