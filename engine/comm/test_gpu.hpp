// For tests: ranks that share a GPU, for which a stand-in on the host takes the place. It is lazy: work runs only when
// something waits for it, so that a missing wait shows in the results.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/comm/one_device.hpp"
#include "engine/comm/test_nccl.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::comm::testing_gpu {

inline constexpr device::Device gpu{device::Kind::cuda, 0};
// Called by the stream of this process when it reaches a reduction.
inline std::function<void()> before_reduction;

// Puts the portable kernel in the place of the device's.
inline void reduce_on_stand_in(device::cuda::RecordingCalls& calls) {
  replace_reduce_on_device(
      [&calls](device::Execution on, const kernels::MemberBuffers& of, std::int64_t begin, std::int64_t count) {
        const std::vector<const std::byte*> inputs(of.inputs.begin(), of.inputs.end());
        const std::vector<std::byte*> outputs(of.outputs.begin(), of.outputs.end());
        calls.launch(on.stream, [=, dtype = of.dtype, op = of.op, divisor = of.divisor] {
          if (before_reduction) before_reduction();
          kernels::reduce_members(device::Space::portable, {dtype, op, inputs, outputs, divisor}, begin, count);
        });
      });
}

// As run_ranks(). The body also gets the stand-in of its process.
inline std::vector<std::string> run_on_gpu(
    int size, testing_ranks::Kind kind, const std::function<void(int rank, device::cuda::RecordingCalls& calls)>& body,
    double deadline = 10.0) {
  device::cuda::RecordingCalls calls;
  calls.be_lazy();
  const device::cuda::StandIn stand_in(calls);
  reduce_on_stand_in(calls);
  std::vector<std::string> failures = testing_ranks::run_ranks(
      size, kind, [&](int rank) { body(rank, calls); }, deadline);
  replace_reduce_on_device(nullptr);
  return failures;
}
inline std::vector<std::string> run_on_gpu(int size, testing_ranks::Kind kind, const testing_ranks::Body& body,
                                           double deadline = 10.0) {
  return run_on_gpu(
      size, kind, [&](int rank, device::cuda::RecordingCalls&) { body(rank); }, deadline);
}

// Ranks with a GPU each, over a stand-in of NCCL. The body gets the one of its process.
inline std::vector<std::string> run_on_gpus(
    int size, const std::function<void(int rank, testing_nccl::RecordingNccl& nccl)>& body, double deadline = 10.0,
    testing_ranks::Kind kind = testing_ranks::Kind::threads) {
  device::cuda::RecordingCalls calls(size);
  calls.be_lazy();
  const device::cuda::StandIn stand_in(calls);
  testing_nccl::RecordingNccl library(calls);
  nccl::replace_calls(&library);
  reduce_on_stand_in(calls);
  std::vector<std::string> failures = testing_ranks::run_ranks(
      size, kind, [&](int rank) { body(rank, library); }, deadline);
  replace_reduce_on_device(nullptr);
  nccl::restore_calls();
  if (library.num_open() > 0) failures.push_back(str(library.num_open(), " communicators outlive their ranks"));
  return failures;
}

// Gives every rank that is forked meanwhile a stand-in of a GPU.
class GpuOfEachRank {
 public:
  GpuOfEachRank() : stand_in_(calls_) { calls_.be_lazy(); }
  GpuOfEachRank(const GpuOfEachRank&) = delete;
  GpuOfEachRank& operator=(const GpuOfEachRank&) = delete;

 private:
  device::cuda::RecordingCalls calls_;
  device::cuda::StandIn stand_in_;
};

}  // namespace lockstep::comm::testing_gpu
