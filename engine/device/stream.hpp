// Streams, events, launches: how every kernel, copy and collective runs.
//
// A stream runs what is launched on it in order: on cpu inline. On sim the host runs a launch too when all before it on
// that stream has run, unless it may block (a collective, a delay). Such a one goes to the stream's worker thread; what
// comes behind is queued, and run by that worker or by whoever waits for it first. On both the order check (order.hpp)
// models it as CUDA would run it: a launch starts after what the host knew when it issued it, and the host learns
// nothing until it waits. Two streams are ordered by events alone.
//
// Raw pointers are handed out by launch() and nowhere else; it names the stream, the reads and the writes:
//
//   launch(current_stream(d), "add", {read(a), read(b), write(out)}, [n](const Pointers& p) {
//     kernel(p.as<float>(2), p.as<const float>(0), p.as<const float>(1), n);
//   });
//
// A collective may start now and finish later on cpu: launch_deferred() runs `start` at once and `finish` when
// something on that stream, or someone waiting for an event recorded on it, needs it.
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

namespace lockstep::device {

enum class Role : std::uint8_t { compute, copy_in, all_gather, reduce_scatter, all_reduce, copy_out };
inline constexpr int num_roles = 6;
std::string_view name_of(Role role);

enum class Mode : std::uint8_t { read, write, update };  // update: reads, then writes

// A range of a block, `offset` and `bytes` in bytes.
struct Access {
  Memory* memory = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  Mode mode = Mode::read;
};

// The start of each access's range, in the order of the accesses. Null for an access of no bytes.
class Pointers {
 public:
  static constexpr std::size_t num_inline = 8;
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
};

class Event;
struct StreamState;

class Stream {
 public:
  Device device() const { return device_; }
  Role role() const { return role_; }
  int id() const { return id_; }  // within the rank; index of its entry in the order check's clocks
  std::string name() const;       // "cpu/compute"
  bool runs_inline() const { return inline_; }
  bool is_wrapped() const { return wrapped_; }  // something goes around each launch (poison, a trace)

  Event record();                 // an event that completes when what was launched so far has run
  void wait(const Event& event);  // what is launched from now on runs after the event
  void synchronize();  // the host waits until everything launched has run; rethrows what failed on the worker

 private:
  friend class Runtime;
  friend struct LaunchDetail;
  Stream() = default;
  Device device_;
  Role role_ = Role::compute;
  int id_ = 0;
  bool inline_ = true;
  bool wrapped_ = false;
  std::shared_ptr<StreamState> state_;  // shared with events and with workers that wait for this stream

 public:
  ~Stream();
};

// A point in a stream. Copyable; an empty one is complete.
class Event {
 public:
  Event() = default;
  bool defined() const { return state_ != nullptr; }
  bool done() const;         // does not wait for the stream; on an inline one, finishes what was deferred before it
  void synchronize() const;  // the host waits, and from then on knows what the stream knew

 private:
  friend class Stream;
  friend struct LaunchDetail;
  struct State;
  std::shared_ptr<State> state_;
};

// The rank's stream of that role on the device, and the one that operations run on now (compute, unless a StreamScope).
Stream& stream(Device device, Role role);
Stream& current_stream(Device device);

// Makes a stream the current one of its device for the scope's life.
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
  // Order check, pointers; throws Error when an access is out of its block's range or on another device than the
  // stream's (cpu memory is allowed on a sim stream in copies only: `copy`).
  static Pointers prepare(Stream& stream, const char* name, std::span<const Access> accesses, bool copy);
  // Runs the body at once where that makes no difference (the head of this file), or hands it to the stream.
  template <class F>
  static void run_or_enqueue(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers,
                             F&& body) {
    const auto run = [&body](const Pointers& p) { body(p); };
    const auto call = [](const void* what, const Pointers& p) { (*static_cast<decltype(run)*>(what))(p); };
    if (stream.runs_inline() && !stream.is_wrapped()) {
      flush(stream);
      run(pointers);
    } else if (stream.is_wrapped() || !run_if_idle(stream, pointers, call, &run)) {
      enqueue(stream, name, accesses, std::move(pointers), Body(std::forward<F>(body)), stream.is_wrapped());
    }
  }
  // Hands the body to the stream: queues it, or (inline, wrapped) runs it now. The worker gets going for what may
  // block, and for a trace, which shows when things would run.
  static void enqueue(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers, Body body,
                      bool may_block);
  // On a stream with a worker, if all before has run; throws what failed before. What `call` throws now is told when a
  // worker would tell it: at the next launch or wait.
  static bool run_if_idle(Stream& stream, const Pointers& pointers, void (*call)(const void*, const Pointers&),
                          const void* body);
  static void defer(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers,
                    const Body& start, Body finish);  // inline streams
  static void flush(Stream& stream);                  // finishes what was deferred on an inline stream
};

// The body must not block. `name` is kept for messages: a literal, or text that outlives the rank. Sizes are checked
// when the launch is issued; the blocks themselves are not kept alive, as freeing is ordered by the stream (device.hpp,
// Memory).
template <class F>
void launch(Stream& stream, const char* name, std::span<const Access> accesses, F&& body) {
  LaunchDetail::run_or_enqueue(stream, name, accesses, LaunchDetail::prepare(stream, name, accesses, false),
                               std::forward<F>(body));
}
template <class F>
void launch(Stream& stream, const char* name, std::initializer_list<Access> accesses, F&& body) {
  launch(stream, name, std::span<const Access>(accesses.begin(), accesses.size()), std::forward<F>(body));
}

// A launch in two halves. Inline streams: `start` runs now (it must not block), `finish` at the next flush: before the
// next launch on the stream, when it is synchronized, or when an event recorded on it after this is waited for or asked
// whether it is done. Others: both on the worker, one after the other. What a rank never waited for is abandoned at its
// end.
void launch_deferred(Stream& stream, const char* name, std::span<const Access> accesses, Body start, Body finish);

// Bytes from one block to another, between any two of cpu and sim, on `stream` (asynchronous on sim when the cpu side
// is pinned; otherwise the host waits). From or to cpu memory on a sim stream, the copy runs after what the cpu's
// current stream has been given so far; who reads a pinned target on the cpu waits for an event of `stream` first.
void copy_bytes(Stream& stream, const Access& to, const Access& from);
// The host reads or writes `bytes` now: waits for the current stream of the block's device.
void read_to_host(void* to, Memory& from, std::size_t offset, std::size_t bytes);
void write_from_host(Memory& to, std::size_t offset, const void* from, std::size_t bytes);
// Keeps the stream busy.
void delay(Stream& stream, double milliseconds);
// Waits for all streams of the current rank.
void synchronize_all();
// Waits for all streams too, but forgets what failed on them, so that they run again: for an error that was expected
// and has been told. What the failed work would have written is undefined, events recorded after it are complete.
void clear_failures();

}  // namespace lockstep::device
