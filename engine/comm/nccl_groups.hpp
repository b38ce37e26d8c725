// The communicators of NCCL that a rank has: one per group and one stream of each member, because collectives whose
// streams are the same have the same order on all members. Internal to engine/comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/comm/nccl_calls.hpp"

namespace lockstep::comm {

struct GroupControl;
struct IssuedCollective;

// Used by the worker of one stream, after the rank's own thread if a preparation has opened it.
class NcclGroup {
 public:
  NcclGroup();
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Creates the communicator of the stream together with all members of the collective or preparation, unless it has
  // one. The members meet twice, at `meeting` and the next one. Returns the number of the next meeting. Waits for the
  // device, and for NCCL, end at a failure of the group or a deadline; the caller then aborts the communicator.
  std::int64_t open(IssuedCollective& issued, nccl::StreamHandle stream, std::int64_t meeting);
  void note_begin();  // marks the place of the collective in the stream
  // Runs what the body sends and receives as one step.
  template <class F>
  void step(IssuedCollective& issued, const F& body) {
    nccl_.group_start();
    try {
      body();
    } catch (...) {
      end_failed_step();
      throw;
    }
    nccl_.group_end();
    wait_for_calls(issued);
  }
  void send(const std::byte* from, std::size_t bytes, int peer);
  void receive(std::byte* to, std::size_t bytes, int peer);
  void all_reduce(const std::byte* from, std::byte* to, std::int64_t count, const nccl::Sum& sum);
  void reduce_scatter(const std::byte* from, std::byte* to, std::int64_t count, const nccl::Sum& sum);
  void wait_for_stream(IssuedCollective& issued);  // what has been enqueued so far has run
  void abort() noexcept;

 private:
  void wait_for_calls(IssuedCollective& issued);
  // Otherwise the later calls of this thread, which other groups make, would belong to the step.
  void end_failed_step() noexcept;

  nccl::Calls& nccl_;
  device::cuda::Calls& cuda_;
  nccl::Handle handle_ = nullptr;
  nccl::StreamHandle stream_ = nullptr;
  device::cuda::EventHandle begin_ = nullptr, event_ = nullptr;
};

class NcclGroups {
 public:
  // The stream that the collective uses on this rank. All members note theirs before one of them calls of().
  void note_stream(IssuedCollective& issued, nccl::StreamHandle stream);
  // The communicator of the collective. All members look for it by the streams of all: a member alone may use another
  // stream than in an earlier collective, for example because only its receive is asynchronous.
  NcclGroup& of(const IssuedCollective& issued);

 private:
  using Key = std::pair<const GroupControl*, std::vector<std::uint8_t>>;  // each member numbers its own streams
  std::mutex mutex_;
  std::vector<nccl::StreamHandle> streams_;  // of this rank, by number
  std::map<Key, std::unique_ptr<NcclGroup>> groups_;
};

}  // namespace lockstep::comm
