// The calls of CUDA that the backend and the transports make, behind one interface. A program makes them through
// driver_calls(); tests make them through a recording stand-in (recording_calls.hpp), on machines without a GPU.
//
// Every call throws ResourceError with the call, CUDA's name of the error and its text if CUDA refuses it. No call
// waits for the device, except those whose comment says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::device::cuda {

// Handles as void*, because headers of CUDA stay in one source.
using StreamHandle = void*;  // cudaStream_t
using EventHandle = void*;   // cudaEvent_t

struct DeviceProperties {
  std::string name;
  std::string id;            // PCI bus id, the same in all processes
  int major = 0, minor = 0;  // compute capability
  std::size_t total_bytes = 0;
};

// The address of another process's memory, as that process publishes it.
struct MemoryHandle {
  unsigned char bytes[64];  // cudaIpcMemHandle_t
};

class Calls {
 public:
  Calls() = default;
  virtual ~Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // ---- devices
  // Throws UnsupportedError with the reason and a remedy where there is no driver, or one that is too old. It does not
  // initialise CUDA, so that a process which forks ranks may call it.
  virtual void require_driver() = 0;
  virtual int driver_version() = 0;  // the newest version of CUDA that it supports, 13000 for 13.0; 0 without a driver
  virtual int num_devices() = 0;     // at least 1; initialises CUDA; throws UnsupportedError like require_driver()
  virtual DeviceProperties properties_of(int device) = 0;
  virtual void use_device(int device) = 0;  // of the calling thread, from now on
  virtual std::size_t free_bytes() = 0;

  // ---- streams and events
  virtual StreamHandle create_stream() = 0;  // it does not synchronise with the default stream
  virtual void destroy_stream(StreamHandle stream) noexcept = 0;
  virtual void synchronize_stream(StreamHandle stream) = 0;  // the calling thread sleeps until the stream is empty
  virtual EventHandle create_event(bool timed) = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record_event(EventHandle event, StreamHandle stream) = 0;
  virtual bool event_done(EventHandle event) = 0;
  virtual void synchronize_event(EventHandle event) = 0;  // the calling thread sleeps until the event
  virtual void wait_event(StreamHandle stream, EventHandle event) = 0;
  virtual float milliseconds_between(EventHandle begin, EventHandle end) = 0;  // both timed and done
  // The stream waits until the word, in pinned memory of the host, is at least `value`; it sets the word to `value`.
  virtual void wait_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) = 0;
  virtual void write_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) = 0;

  // ---- memory
  virtual void* allocate(std::size_t bytes) = 0;  // throws ResourceError where the device has less; may wait
  virtual void release(void* memory) noexcept = 0;
  virtual void pin(void* pages, std::size_t bytes) = 0;  // pages of the host, for all devices of the process
  virtual void unpin(void* pages) noexcept = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) = 0;  // any direction
  virtual void set_bytes(void* to, int byte, std::size_t bytes, StreamHandle stream) = 0;
  virtual MemoryHandle handle_of(void* allocation) = 0;
  virtual void* open_handle(const MemoryHandle& handle) = 0;  // of another process on the same device
  virtual void close_handle(void* memory) noexcept = 0;
};

// CUDA's own. Throws UnsupportedError with a remedy in a build without CUDA.
Calls& driver_calls();

// What the process uses: driver_calls(), or what a test has put in its place.
Calls& calls();
void replace_calls(Calls* stand_in);  // null: driver_calls() again; for tests
Calls* replaced_calls();              // what a test has put in place, or null

}  // namespace lockstep::device::cuda
