#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/device/allocations.hpp"
#include "engine/device/device_arena.hpp"
#include "engine/device/machine_memory.hpp"
#include "engine/device/runtime.hpp"
#include "engine/device/scratch.hpp"
#include "engine/device/stand_in_memory.hpp"
#include "engine/device/tracer.hpp"

namespace lockstep::device {

Memory::~Memory() = default;

Memory* Runtime::new_memory() {
  Memory* const memory = spare_;
  if (memory == nullptr) return new Memory;
  spare_ = memory->next_;
  return memory;
}

Pool& Runtime::pinned_pool(StreamState& state, Kind user) {
  std::unique_ptr<Pool>& pool = state.pinned_pools[static_cast<std::size_t>(user)];
  if (!pool) {
    Backend& backend = backend_of(user);
    pool = std::make_unique<Pool>(&backend_of(host_device.kind).arena(), Pool::page_bytes,
                                  [this, &backend](HostWorld::Region pages) {
                                    backend.pin(pages);
                                    pinned_.push_back({&backend, pages});
                                  });
  }
  return *pool;
}

MemoryPtr Runtime::allocate_on(Stream& stream, std::size_t bytes, Purpose of, std::optional<Kind> pinned_for,
                               bool counts) {
  const Device device = stream.device();
  if (any_released_.load(std::memory_order_acquire)) [[unlikely]]
    collect_released();
  if (counts && bytes > bytes_below_limit()) [[unlikely]]
    over_limit(device, bytes, of);
  Pool& pool = pinned_for ? pinned_pool(*stream.state_, *pinned_for) : stream.state_->pool;
  stats.num_allocations += counts;
  PoolBlock* block = nullptr;
  if (bytes > 0 && pool.has_bytes()) {
    bool grew = false;
    block = pool.allocate(bytes, grew);
    if (block == nullptr) out_of_memory(device, bytes, of, pinned_for);
    stats.num_pool_misses += grew;
  }

  Memory* const memory = new_memory();
  memory->block_ = block;
  memory->pool_ = &pool;
  memory->data_ = block != nullptr ? block->data : nullptr;
  memory->device_ = device;
  memory->bytes_ = bytes;
  memory->purpose_ = of;
  memory->pinned_for_ = pinned_for;
  memory->counts_ = counts;
  memory->id_ = next_id_++;
  if (owner != nullptr) memory->label = *owner;
  memory->allocation_stream_ = &stream;
  memory->runtime_ = this;
  memory->previous_ = nullptr;
  memory->next_ = live_;
  if (live_ != nullptr) live_->previous_ = memory;
  live_ = memory;
  if (counts) {
    count(*memory, static_cast<std::int64_t>(bytes));
    trace_memory();
  }
  // A block without bytes shares them with no earlier one.
  if (order_.on() && memory->block_ != nullptr) order_.allocated(stream.state_->clock, shadow_of(*memory), bytes);
  return MemoryPtr(memory, [](Memory* last) {
    if (last->runtime_ != nullptr) {
      last->runtime_->recycle(last);
    } else {
      delete last;
    }
  });
}

void Runtime::recycle(Memory* memory) {
  if (RankContext::current_or_null() == context_) [[likely]]
    return release(memory);
  std::lock_guard lock(released_mutex_);
  released_.push_back(memory);
  any_released_.store(true, std::memory_order_release);
}

void Runtime::collect_released() {
  std::vector<Memory*> released;
  {
    std::lock_guard lock(released_mutex_);
    released.swap(released_);
    any_released_.store(false, std::memory_order_relaxed);
  }
  for (Memory* memory : released) release(memory);
}

// The stream that allocated a block may use its bytes for the next one after the launches that it has so far.
void Runtime::poison_freed(Memory& memory) {
  Stream& stream = *memory.allocation_stream_;
  if (stream.runs_inline()) {  // what has been issued has run, apart from second halves
    if (memory.pinned() && !stream.queue_->has_deferred()) std::memset(memory.data_, 0xff, memory.bytes_);
    return;
  }
  Pointers pointers(stream.execution());
  pointers.push_back(memory.data_);
  try {
    Backend& backend = memory.runtime_->backend_of(memory.device_);
    stream.queue_->issue([&backend, bytes = memory.bytes_](
                             const Pointers& p) { backend.fill(p.execution(), p.at(0), std::byte{0xff}, bytes); },
                         std::move(pointers), false);
  } catch (const std::exception&) {
    // The stream has failed already; nothing runs on it any more.
  }
}

void Runtime::release(Memory* memory) {
  if (memory->block_ != nullptr) {
    if (order_.on() && memory->shadow_)
      order_.freed(memory->allocation_stream_->state_->clock, *memory->shadow_, *memory);
    if (poisons_freed_) [[unlikely]]
      poison_freed(*memory);
    memory->pool_->release(memory->block_);
  }
  if (memory->shadow_) memory->shadow_->clear();
  if (memory->counts_) {
    count(*memory, -static_cast<std::int64_t>(memory->bytes_));
    trace_memory();
  }
  if (memory->previous_ != nullptr) memory->previous_->next_ = memory->next_;
  if (memory->next_ != nullptr) memory->next_->previous_ = memory->previous_;
  if (live_ == memory) live_ = memory->next_;
  memory->label.clear();
  memory->next_ = spare_;
  spare_ = memory;
}

void Runtime::count(const Memory& memory, std::int64_t bytes) {
  const auto i = static_cast<std::size_t>(memory.purpose_);
  stats.current[i] += bytes;
  stats.current_total += bytes;
  if (bytes <= 0) return;
  ++allocations[i];
  stats.peak[i] = std::max(stats.peak[i], stats.current[i]);
  stats.peak_total = std::max(stats.peak_total, stats.current_total);
  for (MemoryWindow* window : windows) window->peak_ = std::max(window->peak_, current_bytes(window->mask_));
}

void Runtime::trace_memory() {
  if (tracer_) [[unlikely]]
    tracer_->memory_changed(stats);
}

void Runtime::repurpose(Memory& memory, Purpose purpose) {
  if (memory.purpose_ == purpose) return;
  const bool counts = memory.runtime_ != nullptr && memory.counts_;
  if (counts) memory.runtime_->count(memory, -static_cast<std::int64_t>(memory.bytes_));
  memory.purpose_ = purpose;
  if (!counts) return;
  memory.runtime_->count(memory, static_cast<std::int64_t>(memory.bytes_));
  memory.runtime_->trace_memory();
}

std::int64_t Runtime::current_bytes(unsigned purpose_mask) const {
  std::int64_t sum = 0;
  for (int i = 0; i < num_purposes; ++i) {
    if ((purpose_mask >> i) & 1u) sum += stats.current[static_cast<std::size_t>(i)];
  }
  return sum;
}

std::size_t Runtime::bytes_below_limit() const {
  const std::int64_t beside = limit_.beside ? limit_.beside->load(std::memory_order_relaxed) : 0;
  return static_cast<std::size_t>(std::max<std::int64_t>(0, limit_.bytes - stats.current_total - beside));
}

const Memory* Runtime::block_at(const std::byte* address) const {
  for (const Memory* memory = live_; memory != nullptr; memory = memory->next_)
    if (memory->data_ != nullptr && address >= memory->data_ && address < memory->data_ + memory->bytes_) return memory;
  return nullptr;
}

// " 96 (parameter), 32 (activation)", or " 0".
std::string Runtime::in_use_by_purpose(Kind kind) const {
  std::array<std::int64_t, num_purposes> used{};
  for (const Memory* memory = live_; memory != nullptr; memory = memory->next_) {
    if (memory->device_.kind == kind && memory->counts_) {
      used[static_cast<std::size_t>(memory->purpose_)] += static_cast<std::int64_t>(memory->bytes_);
    }
  }
  std::string text;
  for (int i = 0; i < num_purposes; ++i) {
    if (used[static_cast<std::size_t>(i)] == 0) continue;
    text +=
        str(text.empty() ? " " : ", ", used[static_cast<std::size_t>(i)], " (", name_of(static_cast<Purpose>(i)), ")");
  }
  return text.empty() ? " 0" : text;
}

void Runtime::out_of_memory(Device device, std::size_t bytes, Purpose of, std::optional<Kind> pinned_for) {
  const Arena& arena = backend_of(device.kind).arena();
  throw Error(
      str("out of memory on ", to_text(device), " of rank ", context_->rank(), ": ", bytes, " bytes for ", name_of(of),
          pinned_for ? str(", pinned for ", name_of(*pinned_for), ",") : std::string(),
          " were requested; the pools hold ", arena.used_bytes(), " of ", arena.bytes(), " bytes, the machine has ",
          available_memory(), " available; in use are", in_use_by_purpose(device.kind)),
      "shard more, free earlier, or give the world larger arenas");
}

void Runtime::over_limit(Device device, std::size_t bytes, Purpose of) {
  if (limit_.bytes == MemoryLimit::none)
    out_of_memory(device, bytes, of, {});  // the request exceeds any number of bytes
  std::string message =
      str("out of memory on ", to_text(device), " of rank ", context_->rank(), ": ", bytes, " bytes for ", name_of(of),
          " go past the ", limit_.bytes, " that a rank may use; in use are ", stats.current_total,
          " on all devices, on this one", in_use_by_purpose(device.kind));
  if (limit_.beside) message += str(", and ", limit_.beside->load(std::memory_order_relaxed), " for values");
  throw Error(std::move(message), limit_.remedy);
}

MemoryPtr allocate(Device device, std::size_t bytes) {
  Runtime& runtime = Runtime::current();
  return runtime.allocate(device, bytes, runtime.purpose);
}
MemoryPtr allocate(Device device, std::size_t bytes, Purpose purpose) {
  return Runtime::current().allocate(device, bytes, purpose);
}
MemoryPtr allocate_pinned(Device user, std::size_t bytes) {
  return allocate_pinned(user, bytes, Runtime::current().purpose);
}
MemoryPtr allocate_pinned(Device user, std::size_t bytes, Purpose purpose) {
  return Runtime::current().allocate(host_device, bytes, purpose, user.kind);
}

MemoryPtr allocate_scratch(Stream& stream, std::size_t bytes) {
  return Runtime::current().allocate_on(stream, bytes, Purpose::communication, {}, false);
}

MemoryPtr allocate_pinned_scratch(Device user, std::size_t bytes) {
  return Runtime::current().allocate_on(current_stream(host_device), bytes, Purpose::communication, user.kind, false);
}

void count_stand_ins(bool on) { Runtime::current().counts_stand_ins = on; }
bool is_counted(Device device) { return computes(device) || (device.index > 0 && Runtime::current().counts_stand_ins); }

void repurpose(Memory& memory, Purpose purpose) { Runtime::repurpose(memory, purpose); }

PurposeScope::PurposeScope(Purpose purpose, const std::string* owner)
    : previous_(std::exchange(Runtime::current().purpose, purpose)),
      previous_owner_(std::exchange(Runtime::current().owner, owner)) {}
PurposeScope::~PurposeScope() {
  Runtime& runtime = Runtime::current();
  runtime.purpose = previous_;
  runtime.owner = previous_owner_;
}

MemoryStats memory_stats() { return Runtime::current().stats; }

std::int64_t num_allocations(unsigned purpose_mask) {
  const Runtime& runtime = Runtime::current();
  std::int64_t sum = 0;
  for (int i = 0; i < num_purposes; ++i)
    if ((purpose_mask >> i) & 1u) sum += runtime.allocations[static_cast<std::size_t>(i)];
  return sum;
}
std::int64_t reserved_bytes(Device device) {
  return static_cast<std::int64_t>(Runtime::current().backend_of(device).arena().used_bytes());
}
std::int64_t memory_in_use() { return Runtime::current().stats.current_total; }
void limit_memory(MemoryLimit limit) { Runtime::current().limit_memory(std::move(limit)); }

MemoryWindow::MemoryWindow(unsigned purpose_mask) : mask_(purpose_mask) {
  Runtime& runtime = Runtime::current();
  peak_ = runtime.current_bytes(mask_);
  runtime.windows.push_back(this);
}
MemoryWindow::~MemoryWindow() { std::erase(Runtime::current().windows, this); }
std::int64_t MemoryWindow::peak_bytes() const { return peak_; }

DeviceArena device_arena(Kind kind) {
  Backend& backend = Runtime::current().backend_of(Device{kind, 0});
  return {backend.arena().area(), backend.device_id()};
}

}  // namespace lockstep::device
