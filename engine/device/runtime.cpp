#include "engine/device/runtime.hpp"

#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/schedule.hpp"

namespace lockstep::device {

Runtime::Runtime(RankContext& context) : context_(&context), activity_(context.service<Activity>()), order_(context) {
  poison_ = poisons_freed_ = schedule::self() != nullptr;
}

Runtime::~Runtime() {
  poisons_freed_ = false;
  // Queued items are abandoned. All workers are stopped before any is joined, because they wait for each other.
  const auto for_each_stream = [this](auto&& f) {
    for (auto& device : devices_) {
      for (auto& stream : device->streams) {
        if (stream) f(*stream->state_);
      }
    }
  };
  for_each_stream([](StreamState& state) { state.queue->stop(); });
  for_each_stream([](StreamState& state) { state.queue->join(); });
  for_each_stream([](StreamState& state) { state.queue->drop_items(); });
  for (const PinnedPages& pinned : pinned_) pinned.backend->unpin(pinned.pages);
  collect_released();
  // Blocks that outlive the rank keep their sizes and labels but no bytes.
  for (Memory* memory = live_; memory != nullptr; memory = memory->next_) {
    memory->runtime_ = nullptr;
    memory->data_ = nullptr;
  }
  while (spare_ != nullptr) delete std::exchange(spare_, spare_->next_);
  for_each_stream([](StreamState& state) { state.runtime = nullptr; });
}

Backend& Runtime::backend_of(Kind kind) {
  std::unique_ptr<Backend>& backend = backends_[static_cast<std::size_t>(kind)];
  if (!backend) backend = open_backend(kind, *context_);
  return *backend;
}

Runtime::DeviceState& Runtime::state_of(Device device) {
  for (auto& state : devices_) {
    if (state->device == device) return *state;
  }
  auto state = std::make_unique<DeviceState>();
  state->device = device;
  state->backend = &backend_of(device.kind);
  state->current = &stream_of(*state, Role::compute);  // before the device is known: this may throw
  return *devices_.emplace_back(std::move(state));
}

Stream& Runtime::stream_of(DeviceState& state, Role role) {
  const Device device = state.device;
  std::unique_ptr<Stream>& slot = state.streams[static_cast<std::size_t>(role)];
  if (!slot) {
    std::unique_ptr<Stream> made(new Stream);
    made->device_ = device;
    made->role_ = role;
    made->inline_ = capabilities_of(device).runs_inline;
    made->instrumented_ = poison_ || tracer_ != nullptr;
    made->state_ =
        std::make_shared<StreamState>(&state.backend->arena(), state.backend->open_queue(made->name(), activity_));
    made->queue_ = made->state_->queue.get();
    made->execution_ = made->queue_->execution();
    made->state_->runtime = this;
    made->state_->name = made->name();
    order_.add_stream(made->state_->clock, made->name());
    made->id_ = made->state_->clock.id;
    slot = std::move(made);
  }
  return *slot;
}

Stream* Runtime::exchange_current(Device device, Stream* stream) {
  return std::exchange(state_of(device).current, stream);
}

void Runtime::synchronize_all() {
  // By index, because a launch that finishes here may add a device.
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    for (auto& stream : devices_[i]->streams) {
      if (stream) stream->synchronize();
    }
  }
}

void Runtime::clear_failures() {
  for (auto& device : devices_) {
    for (auto& stream : device->streams) {
      if (!stream) continue;
      stream->queue_->clear_failure();
      stream->synchronize();  // the host's clock joins the stream's
    }
  }
}

void Runtime::set_poison(bool on) {
  poison_ = on;
  update_instrumented();
}

void Runtime::update_instrumented() {
  for (auto& device : devices_) {
    for (auto& stream : device->streams) {
      if (stream) stream->instrumented_ = poison_ || tracer_ != nullptr;
    }
  }
}

OrderShadow& Runtime::shadow_of(Memory& memory) {
  if (!memory.shadow_) memory.shadow_ = std::make_unique<OrderShadow>();
  return *memory.shadow_;
}

}  // namespace lockstep::device
