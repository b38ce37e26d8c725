// A stand-in for CUDA on the host, on machines without a GPU: a model of streams and events. "Device memory" is memory
// of the host. Work on a stream runs in order, as far as the events and words that it waits for allow, during the calls
// of any thread; a stream on hold runs nothing. Every call is recorded, and any one can be made to fail. Like CUDA it
// refuses a kernel, and the record of an event, on a stream of another device than the thread's.
//
//   RecordingCalls cuda;
//   const StandIn stand_in(cuda);          // calls() returns `cuda` during its lifetime
//   cuda.hold(stream);
//   cuda.fail("record_event", 2);          // the second one from now throws ResourceError
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "engine/device/cuda/calls.hpp"

namespace lockstep::device::cuda {

// An allocation as other processes find it: a file in memory.
struct SharedAllocation {
  std::int64_t process = 0;
  std::int32_t file = -1;
  std::uint64_t bytes = 0;
};
// Maps an allocation of a process that is alive; null if there is none, or no memory. The pages are used where they are
// touched.
std::byte* map_allocation(const SharedAllocation& of);

// A part of an allocation.
struct DeviceBytes {
  SharedAllocation allocation;
  std::uint64_t offset = 0;
  std::uint64_t address = 0;  // in its own process
};

class RecordingCalls final : public Calls {
 public:
  // In a program log() stays empty, and host code that touches memory of the device ends the rank (protection.hpp).
  enum class Use : std::uint8_t { tests, program };
  explicit RecordingCalls(int num_devices = 1, std::size_t bytes_per_device = std::size_t{16} << 30,
                          Use use = Use::tests);
  ~RecordingCalls() override;

  // ---- for tests
  void hold(StreamHandle stream);  // its work stays where it is
  void resume(StreamHandle stream);
  void hold_all(bool on);  // streams that are created later, too
  // From now on work runs only when a call waits for its stream, or for an event behind it: a wait that is left out
  // shows in the results. A caller that polls an event again and again sees it done in the end. Work of other streams
  // runs only where an event orders it before the awaited work.
  void be_lazy();
  // A kernel: `work` runs when the stream reaches it.
  void launch(StreamHandle stream, std::function<void()> work);
  // It runs when, besides, `ready` is true. Both are called by one thread at a time. `ready` waits for nothing.
  void launch_when(StreamHandle stream, std::function<bool()> ready, std::function<void()> work);
  void fail(const std::string& call, int nth);
  std::vector<std::string> log() const;      // "record_event s1 e2": calls with the numbers of streams and events
  int count(const std::string& call) const;  // since the start
  std::map<std::string, int> counts() const;
  int num_live_events() const;
  int num_live_allocations() const;
  int num_pinned() const;
  std::string no_driver;  // not empty: the reason that require_driver() and num_devices() throw

  // ---- for stand-ins of libraries
  int device_of(StreamHandle stream) const;
  int device_of_thread() const;
  // Throws ResourceError unless the bytes belong to one allocation of this process.
  DeviceBytes find(const void* memory, std::size_t bytes) const;
  // Where this process has bytes that find() has found in any; null if their process has ended. Only work, and its
  // `ready`, may call it.
  std::byte* reach(const DeviceBytes& bytes);

  // ---- Calls
  void require_driver() override;
  int driver_version() override;
  int num_devices() override;
  DeviceProperties properties_of(int device) override;
  void use_device(int device) override;
  std::size_t free_bytes() override;
  StreamHandle create_stream() override;
  void destroy_stream(StreamHandle stream) noexcept override;
  void synchronize_stream(StreamHandle stream) override;
  EventHandle create_event(bool timed) override;
  void destroy_event(EventHandle event) noexcept override;
  void record_event(EventHandle event, StreamHandle stream) override;
  bool event_done(EventHandle event) override;
  void synchronize_event(EventHandle event) override;
  void wait_event(StreamHandle stream, EventHandle event) override;
  float milliseconds_between(EventHandle begin, EventHandle end) override;
  void wait_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) override;
  void write_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void pin(void* pages, std::size_t bytes) override;
  void unpin(void* pages) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) override;
  void set_bytes(void* to, int byte, std::size_t bytes, StreamHandle stream) override;
  MemoryHandle handle_of(void* allocation) override;
  void* open_handle(const MemoryHandle& handle) override;
  void close_handle(void* memory) noexcept override;

 private:
  // Work that has been enqueued. It runs if `ready` is null or true.
  struct Work {
    std::function<bool()> ready;
    std::function<void()> run;
    StreamHandle behind = nullptr;  // `ready` waits for an event of this stream
  };
  struct ModelStream {
    int number = 0;
    int device = 0;
    bool held = false;
    int num_polls = 0;  // of its events since the last work was enqueued
    std::deque<Work> work;
  };
  // An event is done when the stream has reached its last record.
  struct ModelEvent {
    int number = 0;
    int device = 0;
    bool timed = false;
    StreamHandle stream = nullptr;  // of the last record
    std::uint64_t recorded = 0;
    std::uint64_t reached = 0;
    double time = 0;  // when it was reached last, in milliseconds of the host's clock
  };

  void enter(const std::string& call, const std::string& operands);  // under the lock: records, or fails
  ModelStream& stream_of(StreamHandle stream);
  ModelEvent& event_of(EventHandle event);
  void require_device(const std::string& call, int device) const;  // of the thread
  void enqueue(StreamHandle stream, Work work);
  bool is_pageable(const void* memory) const;  // of the host, and not pinned
  void require_pinned_as_one(const void* memory, std::size_t bytes) const;
  bool run_front(ModelStream& stream);  // false if its first work cannot run
  void progress();                      // runs what can run
  // One piece of work that the stream needs to get further. False if none can run.
  bool advance(StreamHandle stream);
  void progress_for(StreamHandle awaited, const std::function<bool()>& holds);  // runs no more than that takes
  void wait_until(std::unique_lock<std::mutex>& lock, StreamHandle awaited, const std::function<bool()>& holds);

  const std::uint64_t id_;
  const int num_devices_;
  const std::size_t bytes_per_device_;
  const bool of_program_;
  pid_t started_in_ = 0;  // the process of the first call
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_new_ = false, lazy_ = false;
  int next_number_ = 1;
  std::map<StreamHandle, std::unique_ptr<ModelStream>> streams_;
  std::map<EventHandle, std::unique_ptr<ModelEvent>> events_;
  struct Allocation {
    std::size_t bytes = 0;
    int file = -1;
    int device = 0;
  };
  std::map<void*, Allocation> allocations_;
  std::map<void*, std::size_t> opened_;                                  // memory of other processes
  std::map<std::pair<std::int64_t, std::int32_t>, std::byte*> reached_;  // of these, by process and file
  std::map<void*, std::size_t> pinned_;
  std::vector<std::string> log_;
  std::map<std::string, int> counts_;
  std::map<std::string, int> failing_;  // by call: how many calls until one fails
};

// Puts calls in place of CUDA's.
class StandIn {
 public:
  explicit StandIn(Calls& calls) { replace_calls(&calls); }
  ~StandIn() { replace_calls(nullptr); }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
};

}  // namespace lockstep::device::cuda
