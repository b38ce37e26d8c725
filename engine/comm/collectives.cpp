// The public collectives: each checks its arguments and makes a Plan; Engine (issue.cpp) does the rest.
#include "engine/comm/communicator.hpp"
#include "engine/comm/messages.hpp"
#include "engine/comm/reduce.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

void check_tensor(const char* operation, const char* which, const Tensor& tensor) {
  if (!tensor.defined()) throw Error(str(operation, ": no ", which, " tensor"), "give one");
  if (tensor.is_meta())
    throw Error(str(operation, ": the ", which, " (", describe(tensor), ") holds no data"),
                "move it to a device first");
  if (!tensor.is_contiguous())
    throw Error(str(operation, ": the ", which, " (", describe(tensor), ") is not contiguous"),
                "make it contiguous first");
}

// Both defined: of one type and device, and the larger `factor` times the smaller.
void check_pair(const char* operation, const Tensor& large, const char* large_name, const Tensor& small,
                const char* small_name, int factor) {
  check_tensor(operation, large_name, large);
  check_tensor(operation, small_name, small);
  if (large.dtype() != small.dtype() || large.device() != small.device())
    throw Error(str(operation, ": ", large_name, " is ", describe(large), " and ", small_name, " ", describe(small)),
                "both must have one type and device");
  if (large.num_elements() != bounded_product(small.num_elements(), factor))
    throw Error(str(operation, ": ", large_name, " has ", large.num_elements(), " elements (", describe(large),
                    ") and ", small_name, " ", small.num_elements(), ", in a group of ", factor),
                str(large_name, " must have ", factor, " times the elements of ", small_name));
}

// `small` may be exactly part `part` of `large` (-1: no part), but not overlap it otherwise.
void check_overlap(const char* operation, const Tensor& large, const Tensor& small, int part) {
  if (large.storage() != small.storage() || small.num_elements() == 0) return;
  const std::int64_t begin = small.offset() - large.offset();
  if (begin >= large.num_elements() || begin + small.num_elements() <= 0) return;
  if (part >= 0 && begin == bounded_product(small.num_elements(), part)) return;
  throw Error(str(operation, ": input and output overlap in storage"),
              part >= 0 ? "let them be apart, or one this rank's own part of the other" : "let them be apart");
}

void check_rank(const char* operation, const ProcessGroup& group, int rank) {
  if (rank < 0 || rank >= group.size())
    throw Error(str(operation, ": rank ", rank, " is not in a group of ", group.size()),
                "give a rank within the group");
}

Plan plan_of(Operation operation, ProcessGroup& group) {
  Plan plan;
  plan.operation = operation;
  plan.group = &group;
  plan.meeting = &Engine::meeting_of(group);
  plan.me = group.rank();
  return plan;
}

Work transfer(Operation operation, ProcessGroup& group, const Tensor& tensor, int peer, const Call& call) {
  const bool sends = operation == Operation::send;
  const char* name = sends ? "send" : "receive";
  check_rank(name, group, peer);
  check_tensor(name, "tensor", tensor);
  if (peer == group.rank())
    throw Error(str(name, ": rank ", peer, " of the group is this rank itself"), "copy the tensor instead");
  Plan plan = plan_of(operation, group);
  plan.meeting = &Communicator::current().channel(group, sends ? group.rank() : peer, sends ? peer : group.rank());
  plan.me = sends ? 0 : 1;
  plan.dtype = tensor.dtype();
  plan.count = tensor.num_elements();
  (sends ? plan.input : plan.output) = &tensor;
  return Engine::issue(plan, call);
}

}  // namespace

Work all_reduce(ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Call& call) {
  check_tensor("all_reduce", "tensor", tensor);
  check_reduction(tensor.dtype(), op, "all_reduce");
  Plan plan = plan_of(Operation::all_reduce, group);
  plan.dtype = tensor.dtype();
  plan.op = op;
  plan.count = tensor.num_elements();
  plan.input = plan.output = &tensor;
  return Engine::issue(plan, call);
}

Work all_gather(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call) {
  check_pair("all_gather", output, "output", input, "input", group.size());
  check_overlap("all_gather", output, input, group.rank());
  Plan plan = plan_of(Operation::all_gather, group);
  plan.dtype = input.dtype();
  plan.count = input.num_elements();
  plan.input = &input;
  plan.output = &output;
  return Engine::issue(plan, call);
}

Work reduce_scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, ReduceOp op, const Call& call) {
  check_pair("reduce_scatter", input, "input", output, "output", group.size());
  check_reduction(input.dtype(), op, "reduce_scatter");
  check_overlap("reduce_scatter", input, output, group.rank());
  Plan plan = plan_of(Operation::reduce_scatter, group);
  plan.dtype = input.dtype();
  plan.op = op;
  plan.count = output.num_elements();
  plan.input = &input;
  plan.output = &output;
  return Engine::issue(plan, call);
}

Work all_to_all(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call) {
  check_pair("all_to_all", output, "output", input, "input", 1);
  check_overlap("all_to_all", output, input, -1);
  if (input.num_elements() % group.size() != 0)
    throw Error(str("all_to_all: ", input.num_elements(), " elements do not split into ", group.size(), " equal parts"),
                "pad the tensor");
  Plan plan = plan_of(Operation::all_to_all, group);
  plan.dtype = input.dtype();
  plan.count = input.num_elements() / group.size();
  plan.input = &input;
  plan.output = &output;
  return Engine::issue(plan, call);
}

Work broadcast(ProcessGroup& group, const Tensor& tensor, int from, const Call& call) {
  check_rank("broadcast", group, from);
  check_tensor("broadcast", "tensor", tensor);
  Plan plan = plan_of(Operation::broadcast, group);
  plan.root = from;
  plan.dtype = tensor.dtype();
  plan.count = tensor.num_elements();
  (group.rank() == from ? plan.input : plan.output) = &tensor;
  return Engine::issue(plan, call);
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
  Plan plan = plan_of(Operation::gather, group);
  plan.root = to;
  plan.dtype = input.dtype();
  plan.count = input.num_elements();
  plan.input = &input;
  if (collects) plan.output = &output;
  return Engine::issue(plan, call);
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
  Plan plan = plan_of(Operation::scatter, group);
  plan.root = from;
  plan.dtype = output.dtype();
  plan.count = output.num_elements();
  plan.output = &output;
  if (gives) plan.input = &input;
  return Engine::issue(plan, call);
}

Work send(ProcessGroup& group, const Tensor& tensor, int to, const Call& call) {
  return transfer(Operation::send, group, tensor, to, call);
}
Work receive(ProcessGroup& group, const Tensor& tensor, int from, const Call& call) {
  return transfer(Operation::receive, group, tensor, from, call);
}

void barrier(ProcessGroup& group, const Call& call) { Engine::issue_on_host(plan_of(Operation::barrier, group), call); }

std::vector<std::string> exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose) {
  return Engine::exchange(group, mine, purpose);
}

}  // namespace lockstep::comm
