// A stand-in of NCCL over a stand-in of CUDA (device/cuda/recording_calls.hpp), for ranks that are threads or processes
// of one machine. It moves the bytes: a member receives from the memory of the sender when the streams of both have
// come to the step, and the step of the sender ends when its peers have received. Its sums have an order of their own:
// from the last member to the first.
//
// It refuses what NCCL refuses: memory that is of no device, two members on one device, and a stream of another device
// than the communicator's. Parts of different sizes, with which NCCL hangs or writes past an end, are an error of the
// communicator.
//
//   nccl::StandIn library(cuda);
//   nccl::replace_calls(&library);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "engine/comm/nccl_calls.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::comm::nccl {

struct StandInCommunicator;
struct StandInCall;

class StandIn final : public Calls {
 public:
  explicit StandIn(device::cuda::RecordingCalls& cuda) : cuda_(cuda) {}
  ~StandIn() override;

  UniqueId unique_id() override;
  Handle create(int size, int member, const UniqueId& id) override;
  bool poll(Handle handle) override;
  void abort(Handle handle) noexcept override;
  void destroy(Handle handle) noexcept override;
  void group_start() override;
  void group_end() override;
  void send(const void* from, std::size_t bytes, int peer, Handle handle, StreamHandle stream) override;
  void receive(void* to, std::size_t bytes, int peer, Handle handle, StreamHandle stream) override;
  void all_reduce(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                  StreamHandle stream) override;
  void reduce_scatter(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                      StreamHandle stream) override;

 private:
  using Owner = std::shared_ptr<StandInCommunicator>;
  struct OpenGroup;
  static OpenGroup& open_group();

  Owner of(Handle handle);
  void end(Handle handle) noexcept;
  void add(const StandInCall& call, Handle handle, StreamHandle stream);
  void add_up(StandInCall call, const void* from, void* to, std::size_t output_bytes, Handle handle,
              StreamHandle stream);
  void forget(const StandInCommunicator& complete);

  device::cuda::RecordingCalls& cuda_;
  std::mutex mutex_;
  std::map<StandInCommunicator*, Owner> open_;  // work on streams may own one for longer
  std::atomic<int> num_ids_{0};
  std::map<std::int32_t, std::int32_t> files_;  // by id of this process, until all members have opened them
};

}  // namespace lockstep::comm::nccl
