#include "engine/comm/one_device.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <unistd.h>

#include "engine/comm/messages.hpp"
#include "engine/comm/mover.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
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
    if (reduction.inputs.size() == 1) {
      const std::size_t element = size_of(reduction.dtype), offset = bounded_bytes(begin, element);
      return copy(reduction.outputs[0] + offset, reduction.inputs[0] + offset, bounded_bytes(count, element));
    }
    reduce_on_device(execution_, reduction, begin, count);
    return bounded_bytes(count, size_of(reduction.dtype));
  }

 private:
  device::Execution execution_;
  std::vector<std::byte*> inputs_, outputs_;
};

static_assert(device::cuda::max_ranks_per_gpu <= kernels::max_members);

// While a member may use the buffers of all. If its collective fails, its rank may end and free its own buffers, so it
// waits until no living peer uses them; a peer that has not begun then fails, too.
class UseOfBuffers {
 public:
  explicit UseOfBuffers(const IssuedCollective& issued)
      : issued_(issued), slot_(issued.slot()), mine_(std::uint64_t{1} << issued.me) {
    slot_.movers.fetch_or(mine_);
  }
  ~UseOfBuffers() {
    if (!is_over_) slot_.is_abandoned.store(1);
    slot_.movers.fetch_and(~mine_);
    if (!is_over_) wait_for_peers();
  }
  UseOfBuffers(const UseOfBuffers&) = delete;
  UseOfBuffers& operator=(const UseOfBuffers&) = delete;

  bool is_refused() const { return slot_.is_abandoned.load() != 0; }
  void end() { is_over_ = true; }

 private:
  std::uint64_t dead() const {
    std::uint64_t bits = 0;
    for (int member = 0; member < issued_.group->size; ++member)
      if (issued_.rank->world->rank(issued_.group->members()[member]).end.load() == RankEnd::died)
        bits |= std::uint64_t{1} << member;
    return bits;
  }
  // A kernel of a peer that hangs is not waited for longer than a rank waits for its own streams at its end.
  void wait_for_peers() const {
    constexpr std::int64_t longest_ns = 10'000'000'000;
    const std::int64_t start = now_ns();
    for (useconds_t pause = 20; (slot_.movers.load() & ~dead()) != 0 && now_ns() - start < longest_ns;
         pause = std::min<useconds_t>(2 * pause, 1000))
      ::usleep(pause);
  }

  const IssuedCollective& issued_;
  Slot& slot_;
  const std::uint64_t mine_;
  bool is_over_ = false;
};
static_assert(kernels::max_members <= 64);

// Each member moves its share of the elements, between two meetings:
//   1. What its stream has enqueued so far has run, so its input is complete and its output unused.
//   2. Its share is in the outputs of all.
// A group of one needs neither.
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
    if (size == 1) return move_range(issued, 0, total);
    device::cuda::calls().synchronize_stream(issued.execution.stream);
    note_moving(issued);
    UseOfBuffers use(issued);
    try {
      move_share(issued, use, total);
    } catch (const CollectiveError&) {
      throw;
    } catch (const std::exception& error) {
      // Before the peers see that the collective is abandoned.
      issued.rank->plane->poison(*issued.group, text_of(error), Cause::own);
      throw;
    }
    use.end();
  }

 private:
  static void move_range(const IssuedCollective& issued, std::int64_t begin, std::int64_t end) {
    const DeviceBuffers buffers(issued);
    if (begin < end) Mover(issued.slot().entries(), issued.group->size, buffers).run(begin, end);
  }

  static void move_share(IssuedCollective& issued, const UseOfBuffers& use, std::int64_t total) {
    const int size = issued.group->size;
    meet_members(issued, 0);
    if (use.is_refused()) {
      check_usable_still(issued, now_ns());
      fail(issued, str(own_call_text(issued), ": a rank ended before the data moved"), Cause::peer_ended);
    }
    const std::int64_t share = (total + size - 1) / size;
    const std::int64_t begin = std::min(total, share * issued.me), end = std::min(total, begin + share);
    move_range(issued, begin, end);
    device::cuda::calls().synchronize_stream(issued.execution.stream);
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
