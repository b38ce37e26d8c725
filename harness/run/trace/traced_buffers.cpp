#include "harness/run/trace/traced_buffers.hpp"

#include <iterator>
#include <memory>
#include <utility>

#include "engine/core/checked.hpp"
#include "engine/device/stand_in_memory.hpp"

namespace lockstep::run {

namespace {

device::MemoryPtr block(device::Device device, std::int64_t bytes, device::Purpose purpose) {
  return device::allocate(device, static_cast<std::size_t>(bytes), purpose);
}

}  // namespace

void TracedBuffers::follow(const std::vector<plan::Collective>& planned, device::Device device) {
  if (!device::is_counted(device)) return;
  if (planned.size() < num_seen_) num_seen_ = planned.size();  // those of a step that had to fail were taken back
  // Prefetched gathers, before the next prefetch.
  for (auto held = gathers_.begin(); held != gathers_.end();)
    held = finish(held->first, held->second) ? gathers_.erase(held) : std::next(held);
  for (; num_seen_ < planned.size(); ++num_seen_) hold(planned[num_seen_], device);
}

void TracedBuffers::hold(const plan::Collective& one, device::Device device) {
  constexpr device::Purpose purpose = device::Purpose::communication;
  if (one.family == "start_up" && one.operation == "broadcast") block(device, one.bytes, purpose);
  if (one.family != "data_parallel") return;
  if (one.operation == "all_gather") {
    Gather& gather = gathers_[one.owner];
    gather.in_forward = one.phase == "forward";
    if (!gather.in_forward) copied_ = Gather();
    gather.buffers.push_back(block(device, one.bytes / one.group_size, purpose));
    gather.buffers.push_back(block(device, one.bytes, purpose));
    if (finish(one.owner, gather)) gathers_.erase(one.owner);
  } else if (one.operation == "reduce_scatter") {
    reduction_.reset();
    reduction_ = block(device, one.bytes, purpose);
  } else if (one.operation == "all_reduce" && !owners_.is_group(one.owner)) {
    buckets_.push_back(block(device, one.bytes, purpose));
  }
}

bool TracedBuffers::finish(const std::string& owner, Gather& gather) {
  if (!owners_.install(owner)) return false;
  copied_ = gather.in_forward ? std::move(gather) : Gather();
  return true;
}

void TracedBuffers::hold_reduced(std::int64_t bytes, device::Device device) {
  constexpr std::size_t num_kept = 2;
  if (bytes == 0 || !device::is_counted(device)) return;
  if (reduced_.size() == num_kept) reduced_.pop_front();
  reduced_.push_back(block(device, bytes, device::Purpose::gradient));
}

void TracedBuffers::end_backward() {
  copied_ = Gather();
  reduction_.reset();
  buckets_.clear();
  reduced_.clear();
}

Tensor without_memory(const Dims& sizes, DType dtype, device::Device device) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::make_shared<Storage>(device, checked_bytes(sizes, size_of(dtype), "a full parameter"), nullptr);
  impl->sizes = sizes;
  impl->strides = contiguous_strides(sizes);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

}  // namespace lockstep::run
