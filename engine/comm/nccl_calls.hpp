// The calls of NCCL that its transport makes, behind one interface. A program makes them through library_calls(), on
// machines without a GPU through a stand-in (nccl_stand_in.hpp).
//
// Sums are NCCL's own: in an order that it chooses.
//
// Communicators are non-blocking: a call may return before it has taken effect, and poll() says when it has. Every call
// throws ResourceError with the call, NCCL's name of the error and its text if NCCL refuses it. No call waits for
// peers.
#pragma once

#include <cstddef>

#include "engine/comm/process_group.hpp"
#include "engine/core/types.hpp"
#include "engine/device/cuda/calls.hpp"

namespace lockstep::comm::nccl {

using device::cuda::StreamHandle;
using Handle = void*;  // ncclComm_t

struct UniqueId {
  char bytes[128];  // ncclUniqueId
};

struct Sum {
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
};
// Whether NCCL has it, and its results differ from ours in the order of additions alone.
bool has(const Sum& sum);

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
  // A reduction of `count` elements, or of `count` per member, for which has() holds.
  virtual void all_reduce(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                          StreamHandle stream) = 0;
  virtual void reduce_scatter(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                              StreamHandle stream) = 0;
};

// NCCL's own, or the stand-in for which the environment asks (device/cuda/stand_in.hpp); null in a build without NCCL.
Calls* library_calls();

// What the process uses: library_calls(), or what a test has put in its place. May be null.
Calls* calls();
void replace_calls(Calls* stand_in);  // null: as in a build without NCCL; for tests
void restore_calls();                 // library_calls() again

}  // namespace lockstep::comm::nccl
