// The device state of a rank: arenas, pools, streams, statistics and the order check (internal to engine/device). It is
// a service of the rank's context. Its functions run on the rank's own thread unless stated otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/device/activity.hpp"
#include "engine/device/arena.hpp"
#include "engine/device/backend.hpp"
#include "engine/device/device.hpp"
#include "engine/device/memory_limit.hpp"
#include "engine/device/order_check.hpp"
#include "engine/device/pool.hpp"
#include "engine/device/queue.hpp"
#include "engine/device/stand_in_memory.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {

class Runtime;
class Tracer;         // tracer.hpp
struct TraceOptions;  // trace.hpp

// The state of a stream, shared with its events. All fields but `queue` are the rank's own thread's.
struct StreamState {
  StreamState(Arena* arena, std::shared_ptr<Queue> of_backend) : queue(std::move(of_backend)), pool(arena) {}

  const std::shared_ptr<Queue> queue;
  Runtime* runtime = nullptr;  // null once the rank's runtime is gone
  std::string name;
  Pool pool;
  std::array<std::unique_ptr<Pool>, num_kinds> pinned_pools{};  // of the host's streams, by the kind of the user
  StreamClock clock;
};

class Runtime {
 public:
  explicit Runtime(RankContext& context);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  static Runtime& current() { return RankContext::current().service<Runtime>(); }
  Backend& backend_of(Device device) { return *state_of(device).backend; }

  Stream& stream(Device device, Role role) { return stream_of(state_of(device), role); }
  Stream& current_stream(Device device) { return *state_of(device).current; }
  Stream* exchange_current(Device device, Stream* stream);
  void synchronize_all();
  void clear_failures();

  // `pinned_for`: the kind of device whose copies may use the memory asynchronously.
  MemoryPtr allocate(Device device, std::size_t bytes, Purpose of, std::optional<Kind> pinned_for = {}) {
    return allocate_on(current_stream(device), bytes, of, pinned_for, is_counted(device));
  }
  // From the pool of the stream. `counts`: in the statistics and against the limit.
  MemoryPtr allocate_on(Stream& stream, std::size_t bytes, Purpose of, std::optional<Kind> pinned_for, bool counts);
  static void repurpose(Memory& memory, Purpose purpose);
  // Any thread: the last owner of the block is gone.
  void recycle(Memory* memory);

  Activity& activity() { return activity_; }
  OrderCheck& order() { return order_; }
  void set_poison(bool on);
  bool poison() const { return poison_; }
  void start_trace(TraceOptions options);
  Tracer* tracer() const { return tracer_.get(); }  // null if the rank is not traced
  // The block that contains the address, or null. For the handler of a crash, too.
  const Memory* block_at(const std::byte* address) const;
  // The shadow of a block, created at the first use.
  static OrderShadow& shadow_of(Memory& memory);

  void limit_memory(MemoryLimit limit) { limit_ = std::move(limit); }
  const MemoryLimit& memory_limit() const { return limit_; }

  bool counts_stand_ins = false;          // stand_in_memory.hpp
  Purpose purpose = Purpose::activation;  // set by the innermost PurposeScope
  const std::string* owner = nullptr;     // set by the innermost PurposeScope
  MemoryStats stats;
  std::array<std::int64_t, num_purposes> allocations{};  // number since the start, by purpose
  std::vector<MemoryWindow*> windows;
  std::int64_t current_bytes(unsigned purpose_mask) const;

 private:
  struct DeviceState {
    Device device;
    Backend* backend = nullptr;
    std::array<std::unique_ptr<Stream>, num_roles> streams;
    Stream* current = nullptr;
  };
  DeviceState& state_of(Device device);
  Stream& stream_of(DeviceState& state, Role role);
  Backend& backend_of(Kind kind);
  void release(Memory* memory);
  static void poison_freed(Memory& memory);
  void collect_released();
  Memory* new_memory();
  Pool& pinned_pool(StreamState& state, Kind user);
  void count(const Memory& memory, std::int64_t bytes);
  void trace_memory();         // a sample of the statistics, if the rank is traced
  void update_instrumented();  // sets Stream::instrumented_ of all streams
  std::size_t bytes_below_limit() const;
  std::string in_use_by_purpose(Kind kind) const;
  [[noreturn]] void out_of_memory(Device device, std::size_t bytes, Purpose of, std::optional<Kind> pinned_for);
  [[noreturn]] void over_limit(Device device, std::size_t bytes, Purpose of);

  RankContext* context_;
  Activity& activity_;
  OrderCheck order_;
  std::array<std::unique_ptr<Backend>, num_kinds> backends_;  // by kind, opened at the first use
  std::vector<std::unique_ptr<DeviceState>> devices_;
  struct PinnedPages {
    Backend* backend;
    HostWorld::Region pages;
  };
  std::vector<PinnedPages> pinned_;
  bool poison_ = false;
  bool poisons_freed_ = false;      // under a schedule: a block that is freed gets NaN, in stream order
  std::shared_ptr<Tracer> tracer_;  // outlives the launches that write into it: the destructor ends the workers first
  std::uint64_t next_id_ = 1;
  MemoryLimit limit_;
  Memory* live_ = nullptr;
  Memory* spare_ = nullptr;
  std::mutex released_mutex_;
  std::vector<Memory*> released_;  // blocks whose last owner was another thread
  std::atomic<bool> any_released_{false};
};

// The only access to a block's address, for launches.
class PointerAccess {
 public:
  static std::byte* data(const Memory& memory) { return memory.data_; }
  static OrderShadow& shadow(Memory& memory) { return Runtime::shadow_of(memory); }
};

struct Event::State {
  std::shared_ptr<StreamState> stream;
  std::uint64_t number = 0;  // of the last item issued before the event
  Clocks known{};
};

}  // namespace lockstep::device
