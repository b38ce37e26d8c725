// Streams, events and launches: every kernel, copy and collective runs as a launch on a stream.
//
// A stream runs its launches in order. On cpu, a launch runs inline. On sim, the host runs a launch itself if the
// stream is idle and the launch cannot block. Launches that may block (collectives, delays) go to the stream's worker
// thread. Later launches are queued; the worker runs them, or the first thread that waits for them. On meta, a launch
// passes the same checks and does not run.
//
// The order check (order.hpp) models both devices as CUDA: a launch is ordered after everything that the host had
// waited for when it issued the launch, and issuing a launch gives the host no order. Only events order two streams.
//
// Only launch() hands out raw pointers. It declares the stream, the reads and the writes:
//
//   launch(current_stream(d), "add", {read(a), read(b), write(out)}, [n](const Pointers& p) {
//     kernel(p.as<float>(2), p.as<const float>(0), p.as<const float>(1), n);
//   });
//
// On cpu, a collective may start now and finish later: launch_deferred() runs `start` at once, and `finish` when a
// later launch on the stream or a wait for one of its events needs it.
//
// All functions act on the current rank and run on its own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/device/device.hpp"
#include "engine/device/execution.hpp"

namespace lockstep::device {

enum class Role : std::uint8_t { compute, copy_in, all_gather, reduce_scatter, all_reduce, copy_out, exchange };
inline constexpr int num_roles = 7;
std::string_view name_of(Role role);

enum class Mode : std::uint8_t { read, write, update };  // update: reads, then writes

// A range of a block, `offset` and `bytes` in bytes.
struct Access {
  Memory* memory = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  Mode mode = Mode::read;
};

// The start addresses of the accessed ranges, in the order of the accesses, and where kernels run. Null for an access
// of 0 bytes.
class Pointers {
 public:
  static constexpr std::size_t num_inline = 8;
  explicit Pointers(const Execution& execution = {}) : execution_(execution) {}
  const Execution& execution() const { return execution_; }
  template <class T>
  T* as(std::size_t i) const {
    return reinterpret_cast<T*>(at(i));
  }
  std::byte* at(std::size_t i) const { return i < num_inline ? inline_[i] : more_[i - num_inline]; }
  void push_back(std::byte* pointer) {
    if (size_ < num_inline)
      inline_[size_] = pointer;
    else
      more_.push_back(pointer);
    ++size_;
  }
  std::size_t size() const { return size_; }

 private:
  std::byte* inline_[num_inline] = {};
  std::vector<std::byte*> more_;
  std::size_t size_ = 0;
  Execution execution_;
};

class Event;
class Queue;  // what runs a stream's work (queue.hpp)
struct StreamState;

class Stream {
 public:
  Device device() const { return device_; }
  Role role() const { return role_; }
  int id() const { return id_; }  // unique within the rank; index into the order check's clocks
  std::string name() const;       // "cpu/compute"
  bool runs_inline() const { return inline_; }
  const Execution& execution() const { return execution_; }  // of the kernels of its launches
  bool is_instrumented() const { return instrumented_; }     // poison mode or a trace wraps each launch

  Event record();                 // returns an event that completes when all launches so far have run
  void wait(const Event& event);  // later launches run after the event
  void synchronize();             // the host waits for all launches; rethrows a failure of one of them
  void rethrow_failure();         // throws the failure of an earlier launch, if one is known; waits for nothing

 private:
  friend class Runtime;
  friend struct LaunchDetail;
  Stream() = default;
  Device device_;
  Role role_ = Role::compute;
  int id_ = 0;
  bool inline_ = true;
  bool instrumented_ = false;
  Execution execution_;
  Queue* queue_ = nullptr;              // of state_
  std::shared_ptr<StreamState> state_;  // shared with events

 public:
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

// A point in a stream. Copyable. A default-constructed event is complete.
class Event {
 public:
  Event() = default;
  bool defined() const { return state_ != nullptr; }
  void synchronize() const;  // the host waits for the event; rethrows a failure before it

 private:
  friend class Stream;
  friend struct LaunchDetail;
  struct State;
  std::shared_ptr<State> state_;
};

// The rank's stream with this role on the device, created at the first use. Throws Error for more than 16 streams per
// rank, UnsupportedError for a device that the build lacks.
Stream& stream(Device device, Role role);
// The stream that operations on the device run on: compute, unless a StreamScope sets another.
Stream& current_stream(Device device);

// Makes a stream the current stream of its device within the scope.
class StreamScope {
 public:
  explicit StreamScope(Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Stream* previous_;
  Device device_;
};

using Body = std::function<void(const Pointers&)>;

struct LaunchDetail {
  // A copy may access cpu memory on any stream. A launch in halves leaves earlier ones on other memory unfinished.
  enum class Kind : std::uint8_t { kernel, copy, in_halves };
  // Finishes the deferred launches of an inline stream, runs the order check and returns the pointers. Throws Error if
  // an access is outside its block, or if its block is on another device than the stream.
  static Pointers prepare(Stream& stream, const char* name, std::span<const Access> accesses, Kind kind);
  // Runs the body now if the stream is inline or idle; otherwise enqueues it.
  template <class F>
  static void run_or_enqueue(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers,
                             F&& body) {
    const auto run = [&body](const Pointers& p) { body(p); };
    const auto call = [](const void* function, const Pointers& p) { (*static_cast<decltype(run)*>(function))(p); };
    if (stream.runs_inline() && !stream.is_instrumented()) {
      run(pointers);
    } else if (stream.is_instrumented() || !run_if_idle(stream, accesses, pointers, call, &run)) {
      enqueue(stream, name, accesses, std::move(pointers), Body(std::forward<F>(body)), stream.is_instrumented());
    }
  }
  // Queues the body, or runs it now on an inline stream. The worker is woken for a body that may block. Instrumented
  // launches count as such, so that a trace shows when they run on the worker.
  static void enqueue(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers, Body body,
                      bool may_block);
  // On a stream with a worker: if the stream is idle, runs the body on the host and returns true. Rethrows an earlier
  // failure. An error of this body is reported at the next launch or wait, like an error on the worker.
  static bool run_if_idle(Stream& stream, std::span<const Access> accesses, const Pointers& pointers,
                          void (*call)(const void*, const Pointers&), const void* body);
  static void defer(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers, Body start,
                    Body finish);
  static void flush(Stream& stream);  // finishes the deferred launches of an inline stream
  // The queue has refused the launch: the order check drops its accesses.
  static void forget(Stream& stream, std::span<const Access> accesses);
};

// Launches a body that must not block. `name` is kept for messages; it is a literal, or text that outlives the rank.
// The launch does not keep its blocks alive, because freeing is in stream order (device.hpp, Memory). Throws Error for
// a range outside its block and for a block on another device than the stream; rethrows an earlier failure of the
// stream.
template <class F>
void launch(Stream& stream, const char* name, std::span<const Access> accesses, F&& body) {
  LaunchDetail::run_or_enqueue(stream, name, accesses,
                               LaunchDetail::prepare(stream, name, accesses, LaunchDetail::Kind::kernel),
                               std::forward<F>(body));
}
template <class F>
void launch(Stream& stream, const char* name, std::initializer_list<Access> accesses, F&& body) {
  launch(stream, name, std::span<const Access>(accesses.begin(), accesses.size()), std::forward<F>(body));
}

// Launches a body in two halves. On an inline stream, `start` runs now and must not block. `finish` runs at the
// stream's synchronization, when an event recorded after this launch is waited for, or before the next launch on the
// stream, unless that is one in halves and neither writes memory that the other accesses. On other streams both run on
// the worker, one after the other. Launches that nothing waited for are abandoned at the end of the rank.
void launch_deferred(Stream& stream, const char* name, std::span<const Access> accesses, Body start, Body finish);

// Copies bytes between blocks of one device, or of one and cpu. `stream` belongs to the device of one of them. A copy
// between devices runs after the launches that the cpu's current stream has so far. It is asynchronous if the cpu block
// is pinned for the device, or if the device copies pageable memory asynchronously (capabilities.hpp); a reader on the
// cpu then waits for an event of `stream`. Otherwise the host waits for the copy. Throws Error for ranges of different
// sizes, and for a source without values (meta) whose target has some.
void copy_bytes(Stream& stream, const Access& to, const Access& from);
// The host waits for the current stream of the block's device, then reads or writes `bytes` at `offset`. A write to
// meta changes nothing; reading from it throws Error.
void read_to_host(void* to, Memory& from, std::size_t offset, std::size_t bytes);
void write_from_host(Memory& to, std::size_t offset, const void* from, std::size_t bytes);
// Keeps the stream busy for this time. Throws Error for a time below 0 or above an hour.
void delay(Stream& stream, double milliseconds);
// Waits for all streams of the current rank; rethrows the first failure.
void synchronize_all();
// Waits for all streams of the current rank and clears their failures, so that they run again. For errors that were
// expected and reported. Memory that failed launches would have written is undefined; events recorded after them are
// complete.
void clear_failures();

}  // namespace lockstep::device
