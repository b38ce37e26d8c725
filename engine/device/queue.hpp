// The order in which the work of a stream runs, as a backend provides it (internal to engine/device).
//
// A queue numbers its items from 1. An event is a number: the last item that was issued before it. Comments name the
// threads that may call a function: "host" is the rank's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/device/stream.hpp"

namespace lockstep::device {

// The time at which a device reached a point of its stream.
class Stamp {
 public:
  Stamp() = default;
  virtual ~Stamp() = default;
  Stamp(const Stamp&) = delete;
  Stamp& operator=(const Stamp&) = delete;
  virtual std::int64_t nanoseconds() const = 0;  // on the steady clock of the host; 0 while the device is not there
};

class Queue {
 public:
  using Call = void (*)(const void* body, const Pointers& pointers);

  Queue() = default;
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Where the kernels of its items run, the same for all items.
  virtual Execution execution() const { return Space::host; }
  // In a body: a stamp behind the work that it has enqueued; null where bodies do the work themselves. It lives as long
  // as the backend.
  virtual const Stamp* stamp() { return nullptr; }

  // ---- host: new items. Each rethrows an earlier failure of an item.
  // An item that runs after all items so far. `may_block`: it waits for something other than the rank's own threads.
  virtual void issue(Body body, Pointers pointers, bool may_block) = 0;
  // Runs the body now, as an item, if all items so far have run. An error of the body is kept for the next call. A
  // queue may leave it to issue().
  virtual bool run_if_idle(Call, const void*, const Pointers&) { return false; }
  // An item in two halves. A queue that runs inline runs the first half now, and the second one when the item is
  // awaited, or before its next item that is no item in halves on other memory.
  virtual void issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access> accesses) = 0;
  // Items issued from now on run after item `number` of the other queue.
  virtual void issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) = 0;
  // No item. A queue that runs inline keeps no failure.
  virtual void rethrow_failure() {}
  virtual std::uint64_t last_number() const = 0;
  // Prepares waits for item last_number(), for queues whose device needs a mark in the stream for that.
  virtual void mark() {}

  // ---- any thread, but the host alone for queues that run inline
  // Returns when item `number` has run. Rethrows a failure of an item up to it.
  virtual void await(std::uint64_t number) = 0;

  // ---- host: the end
  virtual void clear_failure() = 0;  // runs or drops the items so far, then forgets their failure
  virtual void stop() {}             // no further item starts, and threads that wait get an error
  virtual void join() {}             // returns when no thread of the queue runs; after stop() of all queues
  virtual void drop_items() = 0;     // destroys the items that have not run

  // Host: whether items wait for flush(). Only queues that run inline have such items.
  bool has_deferred() const { return has_deferred_; }
  virtual void flush() {}
  // Before an item in halves with these accesses: runs the items that it depends on.
  virtual void flush_before(std::span<const Access>) {}

 protected:
  bool has_deferred_ = false;
};

}  // namespace lockstep::device
