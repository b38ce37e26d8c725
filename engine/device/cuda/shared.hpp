// What the queues of a backend share: its device, and the events that they record. Internal to engine/device/cuda.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/device/cuda/calls.hpp"
#include "engine/device/queue.hpp"

namespace lockstep::device::cuda {

// A point in a stream: the work of all items up to `number`.
struct Mark {
  EventHandle event = nullptr;
  std::uint64_t number = 0;
};

// Any thread of the rank may call it.
class Shared {
 public:
  Shared(Calls& of, int number) : calls(of), device(number) {}
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  // A mark that nobody else has, free again when its last owner but this object is gone. A training step uses the marks
  // of earlier steps. Throws ResourceError if CUDA refuses an event.
  std::shared_ptr<Mark> take_mark();
  // The time at which the device reaches this point of the stream, for a trace. The first stamp waits for the device.
  const Stamp* stamp(StreamHandle stream);

  Calls& calls;
  const int device;
  // A stream was still busy long after the end of its rank. What the device may use then stays allocated.
  std::atomic<bool> is_abandoned{false};

 private:
  // A point of a stream, in the time since `base`: CUDA tells the time between two events. Its resolution is half a
  // microsecond at first, and 0.25 ms after an hour.
  class TimedEvent final : public Stamp {
   public:
    TimedEvent(Shared& of, StreamHandle stream);
    ~TimedEvent() override { shared_.calls.destroy_event(event_); }
    std::int64_t nanoseconds() const override;
    EventHandle event() const { return event_; }

   private:
    Shared& shared_;
    EventHandle event_;
  };

  std::mutex mutex_;
  std::unique_ptr<TimedEvent> base_;
  std::int64_t base_ns_ = 0;  // of the host's clock
  std::deque<TimedEvent> stamps_;
  std::vector<std::shared_ptr<Mark>> marks_;
  std::size_t next_ = 0;  // where the search for a free mark starts
};

}  // namespace lockstep::device::cuda
