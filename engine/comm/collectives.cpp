// The public collectives. Each checks its arguments and makes a CollectiveRequest, which CollectiveIssuer (issue.cpp)
// issues.
#include "engine/comm/communicator.hpp"
#include "engine/comm/messages.hpp"
#include "engine/comm/reduce.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

void check_tensor(const char* operation, const char* which, const Tensor& tensor) {
  if (!tensor.defined()) throw Error(str(operation, ": the ", which, " is undefined"), "pass a defined tensor");
  if (tensor.is_meta())
    throw Error(str(operation, ": the ", which, " (", describe(tensor), ") holds no data"),
                "move it to a device first");
  if (!tensor.is_contiguous())
    throw Error(str(operation, ": the ", which, " (", describe(tensor), ") is not contiguous"),
                "make it contiguous first");
}

// Checks both tensors, that they have one dtype and device, and that `large` has `factor` times the elements of
// `small`.
void check_pair(const char* operation, const Tensor& large, const char* large_name, const Tensor& small,
                const char* small_name, int factor) {
  check_tensor(operation, large_name, large);
  check_tensor(operation, small_name, small);
  if (large.dtype() != small.dtype() || large.device() != small.device())
    throw Error(str(operation, ": ", large_name, " is ", describe(large), " and ", small_name, " ", describe(small)),
                "give both the same dtype and device");
  if (large.num_elements() != bounded_product(small.num_elements(), factor))
    throw Error(str(operation, ": ", large_name, " has ", large.num_elements(), " elements (", describe(large),
                    ") and ", small_name, " ", small.num_elements(), ", in a group of ", factor),
                str(large_name, " must have ", factor, " times the elements of ", small_name));
}

// `small` may be exactly shard number `shard` of `large`; any other overlap is refused. -1: no overlap is allowed.
void check_overlap(const char* operation, const Tensor& large, const Tensor& small, int shard) {
  if (large.storage() != small.storage()) return;
  const std::int64_t begin = small.offset() - large.offset();
  if (begin >= large.num_elements() || begin + small.num_elements() <= 0) return;
  if (shard >= 0 && begin == bounded_product(small.num_elements(), shard)) return;
  throw Error(
      str(operation, ": input and output overlap in storage"),
      shard >= 0 ? "use separate tensors, or exactly this rank's shard of the larger one" : "use separate tensors");
}

void check_rank(const char* operation, const ProcessGroup& group, int rank) {
  if (rank < 0 || rank >= group.size())
    throw Error(str(operation, ": rank ", rank, " is not in a group of ", group.size()),
                "give a rank within the group");
}

CollectiveRequest make_request(Operation operation, ProcessGroup& group) {
  CollectiveRequest request;
  request.operation = operation;
  request.group = &group;
  request.endpoint = &CollectiveIssuer::endpoint_of(group);
  request.me = group.rank();
  return request;
}

Work transfer(Operation operation, ProcessGroup& group, const Tensor& tensor, int peer, const Call& call) {
  const bool sends = operation == Operation::send;
  const char* name = sends ? "send" : "receive";
  check_rank(name, group, peer);
  check_tensor(name, "tensor", tensor);
  if (peer == group.rank())
    throw Error(str(name, ": rank ", peer, " of the group is this rank itself"), "copy the tensor instead");
  CollectiveRequest request = make_request(operation, group);
  request.endpoint = &Communicator::current().channel(group, sends ? group.rank() : peer, sends ? peer : group.rank());
  request.me = sends ? 0 : 1;
  request.dtype = tensor.dtype();
  request.count = tensor.num_elements();
  (sends ? request.input : request.output) = &tensor;
  return CollectiveIssuer::issue(request, call);
}

}  // namespace

Work all_reduce(ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Call& call) {
  check_tensor("all_reduce", "tensor", tensor);
  check_reduction(tensor.dtype(), op, "all_reduce");
  CollectiveRequest request = make_request(Operation::all_reduce, group);
  request.dtype = tensor.dtype();
  request.op = op;
  request.count = tensor.num_elements();
  request.input = request.output = &tensor;
  return CollectiveIssuer::issue(request, call);
}

Work all_gather(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call) {
  check_pair("all_gather", output, "output", input, "input", group.size());
  check_overlap("all_gather", output, input, group.rank());
  CollectiveRequest request = make_request(Operation::all_gather, group);
  request.dtype = input.dtype();
  request.count = input.num_elements();
  request.input = &input;
  request.output = &output;
  return CollectiveIssuer::issue(request, call);
}

Work reduce_scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, ReduceOp op, const Call& call) {
  check_pair("reduce_scatter", input, "input", output, "output", group.size());
  check_reduction(input.dtype(), op, "reduce_scatter");
  check_overlap("reduce_scatter", input, output, group.rank());
  CollectiveRequest request = make_request(Operation::reduce_scatter, group);
  request.dtype = input.dtype();
  request.op = op;
  request.count = output.num_elements();
  request.input = &input;
  request.output = &output;
  return CollectiveIssuer::issue(request, call);
}

Work all_to_all(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call) {
  check_pair("all_to_all", output, "output", input, "input", 1);
  check_overlap("all_to_all", output, input, -1);
  if (input.num_elements() % group.size() != 0)
    throw Error(
        str("all_to_all: ", input.num_elements(), " elements do not split into ", group.size(), " equal shards"),
        "pad the tensor");
  CollectiveRequest request = make_request(Operation::all_to_all, group);
  request.dtype = input.dtype();
  request.count = input.num_elements() / group.size();
  request.input = &input;
  request.output = &output;
  return CollectiveIssuer::issue(request, call);
}

Work broadcast(ProcessGroup& group, const Tensor& tensor, int from, const Call& call) {
  check_rank("broadcast", group, from);
  check_tensor("broadcast", "tensor", tensor);
  CollectiveRequest request = make_request(Operation::broadcast, group);
  request.root = from;
  request.dtype = tensor.dtype();
  request.count = tensor.num_elements();
  (group.rank() == from ? request.input : request.output) = &tensor;
  return CollectiveIssuer::issue(request, call);
}

Work gather(ProcessGroup& group, const Tensor& output, const Tensor& input, int to, const Call& call) {
  check_rank("gather", group, to);
  const bool collects = group.rank() == to;
  if (collects) {
    check_pair("gather", output, "output", input, "input", group.size());
    check_overlap("gather", output, input, to);
  } else {
    check_tensor("gather", "input", input);
  }
  CollectiveRequest request = make_request(Operation::gather, group);
  request.root = to;
  request.dtype = input.dtype();
  request.count = input.num_elements();
  request.input = &input;
  if (collects) request.output = &output;
  return CollectiveIssuer::issue(request, call);
}

Work scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, int from, const Call& call) {
  check_rank("scatter", group, from);
  const bool gives = group.rank() == from;
  if (gives) {
    check_pair("scatter", input, "input", output, "output", group.size());
    check_overlap("scatter", input, output, from);
  } else {
    check_tensor("scatter", "output", output);
  }
  CollectiveRequest request = make_request(Operation::scatter, group);
  request.root = from;
  request.dtype = output.dtype();
  request.count = output.num_elements();
  request.output = &output;
  if (gives) request.input = &input;
  return CollectiveIssuer::issue(request, call);
}

Work send(ProcessGroup& group, const Tensor& tensor, int to, const Call& call) {
  return transfer(Operation::send, group, tensor, to, call);
}
Work receive(ProcessGroup& group, const Tensor& tensor, int from, const Call& call) {
  return transfer(Operation::receive, group, tensor, from, call);
}

Work barrier(ProcessGroup& group, const Call& call) {
  return CollectiveIssuer::issue_on_host(make_request(Operation::barrier, group), call);
}

void prepare(ProcessGroup& group, device::Device device, std::span<const device::Role> roles) {
  CollectiveIssuer::prepare(group, device, roles);
}

std::vector<std::string> exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose) {
  return CollectiveIssuer::exchange(group, mine, purpose);
}

}  // namespace lockstep::comm
