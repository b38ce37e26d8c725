// The device state of a rank: arenas, pools, streams, statistics and the order check (internal to engine/device). It is
// a service of the rank's context. Its functions run on the rank's own thread unless stated otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/rank_context.hpp"
#include "engine/device/activity.hpp"
#include "engine/device/arena.hpp"
#include "engine/device/device.hpp"
#include "engine/device/memory_limit.hpp"
#include "engine/device/order_check.hpp"
#include "engine/device/pool.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {

class Runtime;
class Tracer;         // tracer.hpp
struct TraceOptions;  // trace.hpp

// The state of a stream, shared with its events. Inline streams use the list of deferred launches, the others the queue
// and its worker. Comments name the threads that may call a function: "host" is the rank's own thread.
struct StreamState {
  StreamState(Arena* arena, Activity& of_rank) : activity(of_rank), pool(arena) {}

  Activity& activity;          // outlives the runtime and therefore all threads that wait here
  Runtime* runtime = nullptr;  // null once the rank's runtime is gone
  Stream* stream = nullptr;
  std::string name;
  Pool pool;
  StreamClock clock;

  // Inline streams: the second halves of deferred launches, in order.
  struct Deferred {
    std::uint64_t number = 0;
    Body finish;
    Pointers pointers;
  };
  std::deque<Deferred> deferred;
  std::uint64_t num_deferred = 0;  // issued so far

  // Other streams: items are numbered from 1, and the first `completed` items have run. Items after `failed_at` are
  // dropped. The first thread that waits for an item runs it, one item at a time. The worker is woken for items that
  // may block and for items that are polled.
  struct Item {
    Body body;
    Pointers pointers;
    std::shared_ptr<StreamState> awaited;  // instead of a body: wait for item `number_awaited` of this stream
    std::uint64_t number_awaited = 0;
  };
  static constexpr std::uint64_t no_waiter = ~std::uint64_t{0};
  std::mutex mutex;
  ActivityCondition wake;      // for the worker: worker_target has increased
  ActivityCondition progress;  // for other threads: an item has run
  std::deque<Item> queue;
  std::uint64_t issued = 0;
  std::atomic<std::uint64_t> completed{0};  // stored under the lock, or by the host while it equals `issued`
  std::uint64_t next_awaited = no_waiter;   // the lowest item that a thread waits for; no thread is woken earlier
  std::uint64_t worker_target = 0;          // the worker runs the items up to this one, even if no thread waits
  bool running = false;                     // a thread runs the item after `completed`
  bool stop = false;
  std::exception_ptr error;  // like failed_at, written under the lock and before `completed` by the running thread
  std::uint64_t failed_at = 0;
  std::thread worker;

  // Host. Queues an item; rethrows an earlier failure.
  void push(Item item, bool may_block);
  // Any thread. Runs or waits for the items up to `number`; rethrows the failure of one of them.
  void wait_for(std::uint64_t number);
  bool has_completed(std::uint64_t number) const;  // any thread
  bool has_succeeded(std::uint64_t number);        // any thread: completed, and no item has failed
  void flush_deferred(std::uint64_t up_to);        // host: runs the deferred halves up to this number
  bool is_idle() const;                            // host; rethrows an earlier failure
  // Host, while the stream is idle: counts an item that the host ran itself.
  void complete_on_host(const std::exception_ptr& failure);
  // Any thread. If item `number` has not completed, the worker will run the items up to it.
  bool has_completed_or_wake(std::uint64_t number);
  void run_worker();
  // Makes the worker run the items up to `number`. May release the lock.
  void wake_worker(std::uint64_t number, std::unique_lock<std::mutex>& lock);
  // Runs the front item while no other thread runs one.
  void run_next(std::unique_lock<std::mutex>& lock);
  // Returns when item `number` has completed or the stream ends.
  void await_completed(std::uint64_t number, std::unique_lock<std::mutex>& lock);
  // Host. Runs or drops the queued items, then forgets the failure.
  void clear_failure();
};

class Runtime {
 public:
  explicit Runtime(RankContext& context);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  static Runtime& current() { return RankContext::current().service<Runtime>(); }

  Stream& stream(Device device, Role role);
  Stream& current_stream(Device device) { return *state_of(device).current; }
  Stream* exchange_current(Device device, Stream* stream);
  void synchronize_all();
  void clear_failures();

  MemoryPtr allocate(Device device, std::size_t bytes, Purpose of, bool pinned);
  static void repurpose(Memory& memory, Purpose purpose);
  // Any thread: the last owner of the block is gone.
  void recycle(Memory* memory);

  Activity& activity() { return activity_; }
  OrderCheck& order() { return order_; }
  void set_poison(bool on);
  bool poison() const { return poison_; }
  void start_trace(TraceOptions options);
  Tracer* tracer() const { return tracer_.get(); }  // null if the rank is not traced
  // The shadow of a block, created at the first use.
  static OrderShadow& shadow_of(Memory& memory);

  void limit_memory(MemoryLimit limit) { limit_ = std::move(limit); }

  Purpose purpose = Purpose::activation;  // set by the innermost PurposeScope
  MemoryStats stats;
  std::array<std::int64_t, num_purposes> allocations{};  // number since the start, by purpose
  std::vector<MemoryWindow*> windows;
  std::int64_t current_bytes(unsigned purpose_mask) const;

 private:
  struct DeviceState {
    Device device;
    std::array<std::unique_ptr<Stream>, num_roles> streams;
    Stream* current = nullptr;
  };
  DeviceState& state_of(Device device);
  Arena& arena_of(Kind kind);
  void release(Memory* memory);
  void collect_released();
  void count(Purpose of, std::int64_t bytes);
  void update_instrumented();  // sets Stream::instrumented_ of all streams
  std::size_t bytes_below_limit() const;
  std::string in_use_by_purpose(Kind kind) const;
  [[noreturn]] void out_of_memory(Device device, std::size_t bytes, Purpose of);
  [[noreturn]] void over_limit(Device device, std::size_t bytes, Purpose of);

  RankContext* context_;
  Activity& activity_;
  OrderCheck order_;
  Arena cpu_arena_;
  Arena sim_arena_;
  std::vector<std::unique_ptr<DeviceState>> devices_;
  bool poison_ = false;
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
  std::uint64_t number = 0;  // of the last item issued before the event; inline, of the last deferred launch
  bool runs_inline = true;
  Clocks known{};
};

}  // namespace lockstep::device
