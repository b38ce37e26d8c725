#include "harness/run/trace/traced_buffers.hpp"

#include <memory>

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
  const auto is_used_up = [this](const auto& held) { return owners_.install(held.first); };
  std::erase_if(gathers_, is_used_up);  // prefetched gathers, before the next prefetch
  for (; num_seen_ < planned.size(); ++num_seen_) hold(planned[num_seen_], device);
}

void TracedBuffers::hold(const plan::Collective& one, device::Device device) {
  constexpr device::Purpose purpose = device::Purpose::communication;
  if (one.family == "start_up" && one.operation == "broadcast") block(device, one.bytes, purpose);
  if (one.family != "data_parallel") return;
  if (one.operation == "all_gather") {
    std::vector<device::MemoryPtr>& held = gathers_[one.owner];
    held.push_back(block(device, one.bytes / one.group_size, purpose));
    held.push_back(block(device, one.bytes, purpose));
    if (owners_.install(one.owner)) gathers_.erase(one.owner);
  } else if (one.operation == "reduce_scatter") {
    reduction_.reset();
    reduction_ = block(device, one.bytes, purpose);
  } else if (one.operation == "all_reduce" && !owners_.is_group(one.owner)) {
    buckets_.push_back(block(device, one.bytes, purpose));
  }
}

void TracedBuffers::hold_reduced(std::int64_t bytes, device::Device device) {
  constexpr std::size_t num_kept = 2;
  if (bytes == 0 || !device::is_counted(device)) return;
  if (reduced_.size() == num_kept) reduced_.pop_front();
  reduced_.push_back(block(device, bytes, device::Purpose::gradient));
}

void TracedBuffers::end_backward() {
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
