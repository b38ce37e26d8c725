// Everything a rank has of its devices: arenas, pools, streams, statistics, order check (internal to engine/device).
// A service of the rank's context; its functions run on the rank's own thread.
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

// The inside of a stream. Inline streams use the deferred part, the others the queue and its worker.
struct StreamState {
  StreamState(Arena* arena, Activity& of_rank) : activity(of_rank), pool(arena) {}

  Activity& activity;          // outlives the runtime, and with it all who sleep here
  Runtime* runtime = nullptr;  // null once the rank's runtime is gone
  Stream* stream = nullptr;
  std::string name;
  Pool pool;
  StreamClock clock;

  // Inline: second halves of deferred launches, in order.
  struct Deferred {
    std::uint64_t number = 0;
    Body finish;
    Pointers pointers;
  };
  std::deque<Deferred> deferred;
  std::uint64_t num_deferred = 0;  // issued so far

  // Others: numbered from 1; `completed` items have run. What is issued after `failed_at` is dropped. An item is run by
  // whoever waits for it first, one item at a time; the worker is woken for what may block and what is asked after.
  struct Item {
    Body body;
    Pointers pointers;
    std::shared_ptr<StreamState> awaited;  // a wait for item `number_awaited` of that stream, instead of a body
    std::uint64_t number_awaited = 0;
  };
  static constexpr std::uint64_t nobody_waits = ~std::uint64_t{0};
  std::mutex mutex;
  ActivityCondition wake;      // the worker: something is wanted
  ActivityCondition progress;  // others: something has run
  std::deque<Item> queue;
  std::uint64_t issued = 0;
  std::atomic<std::uint64_t> completed{0};    // stored under the lock, or by the host when it equals `issued`
  std::uint64_t next_awaited = nobody_waits;  // the least `completed` that somebody waits for: none is woken before
  std::uint64_t wanted = 0;                   // what the worker should run to, whether or not somebody waits
  bool running = false;                       // some thread runs the item after `completed`
  bool stop = false;
  std::exception_ptr error;  // as failed_at: written under the lock, before `completed`, by who runs the item
  std::uint64_t failed_at = 0;
  std::thread worker;

  void push(Item item, bool may_block);            // host; throws what failed
  void wait_for(std::uint64_t number);             // any thread; throws the error when it came at or before `number`
  bool has_completed(std::uint64_t number) const;  // any thread
  bool has_run_well(std::uint64_t number);         // any thread; and nothing has failed
  void flush_deferred(std::uint64_t up_to);        // host
  bool is_idle() const;                            // host; throws what failed
  void count_as_run(const std::exception_ptr& failure);  // host, when idle: an item that it ran itself
  bool has_completed_or_hurry(std::uint64_t number);     // any thread; if not, the worker runs to there
  void run_worker();
  void hurry(std::uint64_t number, std::unique_lock<std::mutex>& lock);            // may let the lock go
  void run_next(std::unique_lock<std::mutex>& lock);                               // the front; nothing is running
  void await_completed(std::uint64_t number, std::unique_lock<std::mutex>& lock);  // or the end of the stream
  void clear_failure();  // host; what is queued runs or is dropped first
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
  // The last owner let go; any thread.
  void recycle(Memory* memory);

  Activity& activity() { return activity_; }
  OrderCheck& order() { return order_; }
  void set_poison(bool on);
  bool poison() const { return poison_; }
  void start_trace(TraceOptions options);
  Tracer* tracer() const { return tracer_.get(); }  // null: not traced
  // The shadow of a block, made at first need.
  static OrderShadow& shadow_of(Memory& memory);

  void limit_memory(MemoryLimit limit) { limit_ = std::move(limit); }

  Purpose purpose = Purpose::activation;  // of the innermost PurposeScope
  MemoryStats stats;
  std::array<std::int64_t, num_purposes> allocations{};  // since the start, by purpose
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
  void take_back(Memory* memory);
  void take_back_returned();
  void count(Purpose of, std::int64_t bytes);
  void mark_wrapped();       // the streams, when something goes around each launch
  std::size_t room() const;  // below the limit
  std::string in_use_by_purpose(Kind kind) const;
  [[noreturn]] void out_of_memory(Device device, std::size_t bytes, Purpose of);
  [[noreturn]] void past_limit(Device device, std::size_t bytes, Purpose of);

  RankContext* context_;
  Activity& activity_;
  OrderCheck order_;
  Arena cpu_arena_;
  Arena sim_arena_;
  std::vector<std::unique_ptr<DeviceState>> devices_;
  bool poison_ = false;
  std::shared_ptr<Tracer> tracer_;  // outlives the launches that write into it: workers end before members go
  std::uint64_t next_id_ = 1;
  MemoryLimit limit_;
  Memory* living_ = nullptr;
  Memory* spare_ = nullptr;
  std::mutex returned_mutex_;
  std::vector<Memory*> returned_;  // let go by other threads
  std::atomic<bool> any_returned_{false};
};

// The one door to a block's address, for launches alone.
class PointerAccess {
 public:
  static std::byte* data(const Memory& memory) { return memory.data_; }
  static OrderShadow& shadow(Memory& memory) { return Runtime::shadow_of(memory); }
};

struct Event::State {
  std::shared_ptr<StreamState> stream;
  std::uint64_t number = 0;  // of the last item issued before (worker), or the last deferred one (inline)
  bool runs_inline = true;
  Clocks known{};
};

}  // namespace lockstep::device
