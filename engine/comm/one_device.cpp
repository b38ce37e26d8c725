#include "engine/comm/one_device.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/comm/mover.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/error.hpp"
#include "engine/device/cuda/calls.hpp"
#include "engine/device/cuda/cuda_backend.hpp"

namespace lockstep::comm {

namespace {

ReduceOnDevice& reducer() {
  static ReduceOnDevice reduce = kernels::reduce_members;
  return reduce;
}

kernels::MemberOp member_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return kernels::MemberOp::max;
    case ReduceOp::min:
      return kernels::MemberOp::min;
    case ReduceOp::product:
      return kernels::MemberOp::product;
    case ReduceOp::sum:
    case ReduceOp::mean:
      break;
  }
  return kernels::MemberOp::sum;
}

}  // namespace

void reduce_on_device(device::Execution on, const Reduction& reduction, std::int64_t begin, std::int64_t count) {
  reducer()(on, {reduction.dtype, member_op(reduction.op), reduction.inputs, reduction.outputs, reduction.divisor},
            begin, count);
}

namespace {

// The members' buffers as this member addresses them. What is enqueued on its stream counts as stored: move() waits for
// the stream, and fails if the device does.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(const IssuedCollective& issued) : execution_(issued.execution) {
    DeviceMemory& memory = *issued.rank->device_memory;
    for (int member = 0; member < issued.group->size; ++member) {
      const MemberEntry& entry = issued.slot().entries()[member];
      const int rank = issued.group->members()[member];
      inputs_.push_back(memory.address_of(rank, entry.input));
      outputs_.push_back(memory.address_of(rank, entry.output));
    }
  }
  const std::byte* input(int member) const { return inputs_[static_cast<std::size_t>(member)]; }
  std::byte* output(int member) const { return outputs_[static_cast<std::size_t>(member)]; }
  std::size_t copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (to != from && bytes > 0) device::cuda::calls().copy(to, from, bytes, execution_.stream);
    return bytes;
  }
  std::size_t copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool) const {
    for (std::byte* each : to)
      if (each != nullptr) copy(each, from, bytes);
    return bytes;
  }
  std::size_t reduce(const Reduction& reduction, std::int64_t begin, std::int64_t count) const {
    reduce_on_device(execution_, reduction, begin, count);
    return bounded_bytes(count, size_of(reduction.dtype));
  }

 private:
  device::Execution execution_;
  std::vector<std::byte*> inputs_, outputs_;
};

static_assert(device::cuda::max_ranks_per_gpu <= kernels::max_members);

// Each member moves its share of the elements, between two meetings:
//   1. What its stream has enqueued so far has run, so its input is complete and its output unused.
//   2. Its share is in the outputs of all.
// The host waits for the stream, on the worker thread of the queue, because the device cannot wait for another process:
// streams of one device share its channels, so a stream that waits may stop the one that it waits for.
class OneDevice : public Transport {
 public:
  TransportTraits traits() const override { return {.device_memory = true}; }
  void move(IssuedCollective& issued) const override {
    const int size = issued.group->size;
    const std::int64_t total = chunking_of(issued.fingerprint, size).total;
    if (size > kernels::max_members)
      throw UnsupportedError(str("a group of ", size, " ranks on one device"),
                             str("use at most ", int{kernels::max_members}, " ranks per device"));
    if (total == 0) return;
    device::cuda::Calls& calls = device::cuda::calls();
    calls.synchronize_stream(issued.execution.stream);
    note_moving(issued);
    meet_members(issued, 0);
    const std::int64_t share = (total + size - 1) / size;
    const std::int64_t begin = std::min(total, share * issued.me), end = std::min(total, begin + share);
    const DeviceBuffers buffers(issued);
    if (begin < end) Mover(issued.slot().entries(), size, buffers).run(begin, end);
    calls.synchronize_stream(issued.execution.stream);
    meet_members(issued, 1);
  }
};

}  // namespace

void replace_reduce_on_device(ReduceOnDevice stand_in) {
  reducer() = stand_in ? std::move(stand_in) : ReduceOnDevice(kernels::reduce_members);
}

const Transport& one_device_transport() {
  static const OneDevice transport;
  return transport;
}

}  // namespace lockstep::comm
