// The calls of NCCL that its transport makes, behind one interface. A program makes them through library_calls(); tests
// make them through a stand-in (test_nccl.hpp), on machines without a GPU.
//
// Communicators are non-blocking: a call may return before it has taken effect, and poll() says when it has. Every call
// throws ResourceError with the call, NCCL's name of the error and its text if NCCL refuses it. No call waits for
// peers.
#pragma once

#include <cstddef>

#include "engine/device/cuda/calls.hpp"

namespace lockstep::comm::nccl {

using device::cuda::StreamHandle;
using Handle = void*;  // ncclComm_t

struct UniqueId {
  char bytes[128];  // ncclUniqueId
};

class Calls {
 public:
  Calls() = default;
  virtual ~Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  virtual UniqueId unique_id() = 0;  // of a new communicator, for one of its members
  virtual Handle create(int size, int rank, const UniqueId& id) = 0;
  virtual bool poll(Handle handle) = 0;            // whether the calls so far have taken effect
  virtual void abort(Handle handle) noexcept = 0;  // ends its kernels, and frees it
  virtual void destroy(Handle handle) noexcept = 0;

  // Between group_start() and group_end() of a thread: they match sends and receives of all members as one.
  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(const void* from, std::size_t bytes, int peer, Handle handle, StreamHandle stream) = 0;
  virtual void receive(void* to, std::size_t bytes, int peer, Handle handle, StreamHandle stream) = 0;
};

// NCCL's own; null in a build without it.
Calls* library_calls();

// What the process uses: library_calls(), or what a test has put in its place. May be null.
Calls* calls();
void replace_calls(Calls* stand_in);  // null: as in a build without NCCL; for tests
void restore_calls();                 // library_calls() again

}  // namespace lockstep::comm::nccl
