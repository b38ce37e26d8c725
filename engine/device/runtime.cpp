#include "engine/device/runtime.hpp"

#include <utility>

#include "engine/core/error.hpp"

namespace lockstep::device {

Runtime::Runtime(RankContext& context) : context_(&context), activity_(context.service<Activity>()), order_(context) {}

Runtime::~Runtime() {
  // Queued items are abandoned. All workers are stopped before any is joined, because they wait for each other.
  const auto for_each_stream = [this](auto&& f) {
    for (auto& device : devices_) {
      for (auto& stream : device->streams) {
        if (stream) f(*stream->state_);
      }
    }
  };
  for_each_stream([](StreamState& state) {
    std::lock_guard lock(state.mutex);
    state.stop = true;
    state.wake.notify();
    state.progress.notify();
  });
  for_each_stream([](StreamState& state) {
    if (state.worker.joinable()) state.worker.join();
  });
  for_each_stream([](StreamState& state) {
    // Bodies may own blocks, so destroying a body may free one.
    std::deque<StreamState::Item> queue = std::move(state.queue);
    state.queue.clear();
    std::deque<StreamState::Deferred> deferred = std::move(state.deferred);
    state.deferred.clear();
  });
  collect_released();
  // Blocks that outlive the rank keep their sizes and labels but no bytes.
  for (Memory* memory = live_; memory != nullptr; memory = memory->next_) {
    memory->runtime_ = nullptr;
    memory->data_ = nullptr;
    memory->block_ = nullptr;
  }
  while (spare_ != nullptr) delete std::exchange(spare_, spare_->next_);
  for_each_stream([](StreamState& state) {
    state.runtime = nullptr;
    state.stream = nullptr;
  });
}

Arena& Runtime::arena_of(Kind kind) {
  Arena& arena = kind == Kind::cpu ? cpu_arena_ : sim_arena_;
  if (!arena.defined()) {
    const auto* world = static_cast<const HostWorld*>(context_->shared());
    if (world == nullptr) {
      arena = Arena::map_private(HostWorld::default_arena_bytes);
    } else {
      LOCKSTEP_CHECK(context_->rank() < world->world_size(), "rank ", context_->rank(), " of a world of ",
                     world->world_size());
      arena = Arena(kind == Kind::cpu ? world->cpu_arena(context_->rank()) : world->sim_arena(context_->rank()));
    }
  }
  return arena;
}

Runtime::DeviceState& Runtime::state_of(Device device) {
  for (auto& state : devices_) {
    if (state->device == device) return *state;
  }
  require_available(device.kind);
  if (device.kind == Kind::meta) {
    throw Error("the meta device has no streams and no memory", "use cpu or sim if values are needed");
  }
  auto state = std::make_unique<DeviceState>();
  state->device = device;
  DeviceState& added = *devices_.emplace_back(std::move(state));
  added.current = &stream(device, Role::compute);
  return added;
}

Stream& Runtime::stream(Device device, Role role) {
  DeviceState& state = state_of(device);
  std::unique_ptr<Stream>& slot = state.streams[static_cast<std::size_t>(role)];
  if (!slot) {
    std::unique_ptr<Stream> made(new Stream);
    made->device_ = device;
    made->role_ = role;
    made->inline_ = device.kind == Kind::cpu;
    made->instrumented_ = poison_ || tracer_ != nullptr;
    made->state_ = std::make_shared<StreamState>(&arena_of(device.kind), activity_);
    made->state_->runtime = this;
    made->state_->stream = made.get();
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
      stream->state_->clear_failure();
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
