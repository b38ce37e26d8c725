#include "engine/parallel/host_tensors.hpp"

#include <cstring>
#include <utility>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/parallel/shard_copies.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

Tensor numbers(const std::vector<std::int64_t>& values, DType dtype) {
  const device::PurposeScope purpose(device::Purpose::communication);
  return from_values(values, {static_cast<std::int64_t>(values.size())}, dtype, device::Device{});
}

template <class T>
std::vector<std::int64_t> read_back(const Tensor& tensor) {
  const std::vector<std::byte> bytes = to_bytes(tensor);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

}  // namespace

std::vector<std::int64_t> broadcast_numbers(comm::ProcessGroup& group, const std::vector<std::int64_t>& mine,
                                            const comm::Call& call) {
  const Tensor tensor = numbers(mine, DType::int64);
  comm::broadcast(group, tensor, 0, call);
  return read_back<std::int64_t>(tensor);
}

std::vector<std::int64_t> gather_numbers(comm::ProcessGroup& group, std::int64_t mine, const comm::Call& call) {
  const Tensor all = numbers(std::vector<std::int64_t>(static_cast<std::size_t>(group.size()), mine), DType::int64);
  comm::all_gather(group, all, numbers({mine}, DType::int64), call);
  return read_back<std::int64_t>(all);
}

std::vector<std::int64_t> sum_numbers(comm::ProcessGroup& group, const std::vector<std::int64_t>& mine,
                                      const comm::Call& call) {
  const Tensor tensor = numbers(mine, DType::int32);
  comm::all_reduce(group, tensor, comm::ReduceOp::sum, call);
  return read_back<std::int32_t>(tensor);
}

std::vector<Tensor> broadcast_together(comm::ProcessGroup& group, const std::vector<Tensor>& tensors,
                                       const comm::Call& call) {
  const NoGrad no_grad;
  const device::PurposeScope purpose(device::Purpose::communication);
  std::vector<Tensor> received(tensors.size());
  for (std::size_t first = 0; first < tensors.size(); ++first) {
    if (received[first].defined()) continue;
    std::vector<std::size_t> members;  // the tensors on the device of `first`
    bool one_type = true;
    for (std::size_t i = first; i < tensors.size(); ++i)
      if (tensors[i].device() == tensors[first].device()) {
        members.push_back(i);
        one_type = one_type && tensors[i].dtype() == tensors[first].dtype();
      }
    std::vector<std::int64_t> offsets;
    std::int64_t bytes = 0;
    for (const std::size_t i : members) {
      if (!one_type) bytes = (bytes + 7) / 8 * 8;  // the alignment of the largest element type
      offsets.push_back(bytes);
      bytes = checked_add(bytes, tensors[i].num_bytes(), "coalesced broadcast");
    }
    const DType dtype = one_type ? tensors[first].dtype() : DType::boolean;
    const Tensor flat = empty({bytes / static_cast<std::int64_t>(size_of(dtype))}, dtype, tensors[first].device());
    for (std::size_t k = 0; k < members.size(); ++k) {
      received[members[k]] = typed_view(flat, tensors[members[k]].sizes(), tensors[members[k]].dtype(), offsets[k]);
      if (group.rank() == 0) raw::copy_(received[members[k]], detach(tensors[members[k]]));
    }
    comm::broadcast(group, flat, 0, call);
  }
  return received;
}

}  // namespace lockstep::parallel
