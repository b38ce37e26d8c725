// The collectives that a scenario issues itself. They count in the family `user`.
#include <algorithm>
#include <limits>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

comm::ProcessGroup& group_of(const DeviceMesh& mesh) {
  return mesh.num_axes() == 1 ? mesh.group(0) : mesh.mesh_group();
}

comm::Call options_of(const StepCall& call, bool async) {
  comm::Call options;
  options.async = async;
  options.owner = call.has("tensor") ? call.source("tensor") : std::string(scenario::name_of(call.step.verb));
  return options;
}

comm::Call options_of(const StepCall& call, bool async, int dim) {
  comm::Call options = options_of(call, async);
  options.dim = dim;
  return options;
}

// A rank of a mesh. The collective refuses one that the mesh does not have.
int rank_of(const StepCall& call, const char* name) {
  using Limits = std::numeric_limits<int>;
  return static_cast<int>(std::clamp<std::int64_t>(call.integer(name), Limits::min(), Limits::max()));
}

Value in_place(comm::Work work, bool async) { return async ? Value(Handle{std::move(work), nullptr}) : Value(); }

// The result of a collective that is not in place, or with `async` a handle that holds the result.
Value with_result(comm::Work work, bool async, Value result) {
  if (!async) return result;
  return Value(Handle{std::move(work), std::make_shared<const Value>(std::move(result))});
}

// Collectives join tensors along dim 0. to_front() moves `dim` there, from_front() moves it back.
Tensor to_front(const Tensor& tensor, int dim) {
  return raw::contiguous(dim == 0 ? tensor : transpose(tensor, 0, dim));
}
Tensor from_front(const Tensor& tensor, int dim) {
  return dim == 0 ? tensor : raw::contiguous(transpose(tensor, 0, dim));
}

int dim_of(const StepCall& call, const Tensor& tensor) {
  if (tensor.num_dims() == 0)
    throw Error("a tensor without dims cannot be joined or split along a dim", "reshape it to (1)");
  return normalize_dim(call.integer("dim"), tensor.num_dims(), "dim");
}

Dims with_first(Dims sizes, std::int64_t first) {
  sizes[0] = first;
  return sizes;
}

Value joined(comm::Work work, bool async, const Tensor& output, int dim) {
  return with_result(std::move(work), async, Value(from_front(output, dim)));
}

Tensor plain_tensor(const StepCall& call, const char* argument = "tensor") {
  const Tensor tensor = lockstep::detach(call.tensor(argument));
  if (tensor.is_sharded())
    throw Error(str("`", argument, "` is ", describe_sharded(tensor)), "use its local tensor, or redistribute it");
  return tensor;
}

// The arguments of a collective that joins or splits a tensor along a dim. Rejects an asynchronous one along another
// dim than 0: the copy that moves the dim back must follow the wait.
struct AlongDim {
  explicit AlongDim(const StepCall& call)
      : tensor(plain_tensor(call)),
        mesh(call.mesh()),
        group(group_of(*mesh)),
        dim(dim_of(call, tensor)),
        async(call.boolean("async")) {
    if (async && dim != 0)
      throw Error("an asynchronous collective joins along dim 0 only", "wait at once, or transpose the tensor");
    if (!call.has("into")) return;
    if (dim != 0) throw Error("`into` takes the result of dim 0 only", "leave it out, or transpose the tensors");
    into = plain_tensor(call, "into");
  }

  Tensor tensor, into;
  MeshPtr mesh;
  comm::ProcessGroup& group;
  int dim;
  bool async;

  void check_divisible() const {
    if (tensor.size(dim) % group.size() != 0)
      throw Error(str("dim ", dim, " of ", describe(tensor), " cannot be split among ", group.size(), " ranks"),
                  "pad the dim to a multiple of the number of ranks");
  }
  Tensor input() const { return to_front(tensor, dim); }
  // The output for an input, with size `first` in dim 0 unless the scenario gives it.
  Tensor output(const Tensor& input, std::int64_t first) const {
    return into.defined() ? into : empty(with_first(input.sizes(), first), tensor.dtype(), tensor.device());
  }
};

}  // namespace

Value all_reduce(StepCall& call) {
  const Tensor tensor = plain_tensor(call);
  const bool async = call.boolean("async");
  const MeshPtr mesh = call.mesh();
  return in_place(
      comm::all_reduce(group_of(*mesh), tensor, comm::reduce_op_from_name(call.text("op")), options_of(call, async)),
      async);
}

Value all_gather(StepCall& call) {
  const AlongDim along(call);
  const Tensor input = along.input();
  const Tensor output = along.output(input, checked_multiply(input.size(0), along.group.size(), "all_gather"));
  comm::Work work = comm::all_gather(along.group, output, input, options_of(call, along.async, along.dim));
  return joined(std::move(work), along.async, output, along.dim);
}

Value reduce_scatter(StepCall& call) {
  const AlongDim along(call);
  along.check_divisible();
  const Tensor input = along.input();
  const Tensor output = along.output(input, input.size(0) / along.group.size());
  comm::Work work = comm::reduce_scatter(along.group, output, input, comm::reduce_op_from_name(call.text("op")),
                                         options_of(call, along.async, along.dim));
  return joined(std::move(work), along.async, output, along.dim);
}

Value all_to_all(StepCall& call) {
  const AlongDim along(call);
  along.check_divisible();
  const Tensor input = along.input();
  const Tensor output = along.output(input, input.size(0));
  comm::Work work = comm::all_to_all(along.group, output, input, options_of(call, along.async, along.dim));
  return joined(std::move(work), along.async, output, along.dim);
}

Value broadcast(StepCall& call) {
  const Tensor tensor = plain_tensor(call);
  const MeshPtr mesh = call.mesh();
  comm::ProcessGroup& group = group_of(*mesh);
  const bool async = call.boolean("async");
  return in_place(comm::broadcast(group, tensor, rank_of(call, "from"), options_of(call, async)), async);
}

Value receive(StepCall& call) {
  const Tensor tensor = plain_tensor(call);
  const MeshPtr mesh = call.mesh();
  comm::ProcessGroup& group = group_of(*mesh);
  const bool async = call.boolean("async");
  return in_place(comm::receive(group, tensor, rank_of(call, "from"), options_of(call, async)), async);
}

Value send(StepCall& call) {
  const Tensor tensor = raw::contiguous(plain_tensor(call));
  const MeshPtr mesh = call.mesh();
  comm::ProcessGroup& group = group_of(*mesh);
  const bool async = call.boolean("async");
  return in_place(comm::send(group, tensor, rank_of(call, "to"), options_of(call, async)), async);
}

Value gather(StepCall& call) {
  const Tensor input = raw::contiguous(plain_tensor(call));
  const MeshPtr mesh = call.mesh();
  comm::ProcessGroup& group = group_of(*mesh);
  const int to = rank_of(call, "to");
  const bool async = call.boolean("async");
  if (group.rank() != to) {
    comm::Work work = comm::gather(group, Tensor(), input, to, options_of(call, async));
    return with_result(std::move(work), async, Value::list({}));
  }
  Dims sizes{group.size()};
  for (std::int64_t size : input.sizes()) sizes.push_back(size);
  const Tensor output = empty(sizes, input.dtype(), input.device());
  comm::Work work = comm::gather(group, output, input, to, options_of(call, async));
  List items;
  for (int rank = 0; rank < group.size(); ++rank) items.push_back(Value(select(output, 0, rank)));
  return with_result(std::move(work), async, Value::list(std::move(items)));
}

Value scatter(StepCall& call) {
  const MeshPtr mesh = call.mesh();
  comm::ProcessGroup& group = group_of(*mesh);
  const int from = rank_of(call, "from");
  const bool async = call.boolean("async");
  // Every rank evaluates the list, for the type and shape of its result. Only the tensors of rank `from` are sent.
  const Value tensors = call.value("tensors");
  const List& items = tensors.as_list("tensors");
  if (items.size() != static_cast<std::size_t>(group.size()))
    throw Error(str("`tensors` has ", items.size(), " items for a mesh of ", group.size(), " ranks"));
  for (const Value& item : items)
    if (const Tensor& tensor = item.as_tensor("an item of `tensors`"); tensor.is_sharded())
      throw Error(str("an item of `tensors` is ", describe_sharded(tensor)),
                  "use its local tensor, or redistribute it");
  const Tensor mine = items[static_cast<std::size_t>(group.rank())].as_tensor("an item of `tensors`");
  const Tensor output = empty(mine.sizes(), mine.dtype(), mine.device());
  Tensor input;
  if (group.rank() == from) {
    std::vector<Tensor> rows;
    for (const Value& item : items) {
      const Tensor& tensor = item.as_tensor("an item of `tensors`");
      if (!(tensor.sizes() == mine.sizes()) || tensor.dtype() != mine.dtype())
        throw Error(str("the items of `tensors` differ: ", describe(tensor), " and ", describe(mine)));
      rows.push_back(raw::reshape(tensor, {1, tensor.num_elements()}));
    }
    input = raw::contiguous(raw::cat(rows, 0));
  }
  comm::Work work = comm::scatter(group, output, input, from, options_of(call, async));
  return with_result(std::move(work), async, Value(output));
}

Value barrier(StepCall& call) {
  const MeshPtr mesh = call.mesh();
  const bool async = call.boolean("async");
  return in_place(comm::barrier(group_of(*mesh), options_of(call, async)), async);
}

}  // namespace lockstep::run::verbs
