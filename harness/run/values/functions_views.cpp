// Functions that give the elements of tensors another shape or order.
#include <algorithm>
#include <limits>

#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

std::int64_t size_of_dim(const Tensor& x, int dim) { return global_sizes(x)[dim]; }

Value as_list(const std::vector<Tensor>& tensors) {
  List items;
  for (const Tensor& tensor : tensors) items.push_back(Value(tensor));
  return Value::list(std::move(items));
}

}  // namespace

Value view(const CallArguments& call) { return Value(ops::view(call.tensor(0, "x"), sizes_at(call, 1, "sizes"))); }

Value permute(const CallArguments& call) {
  return Value(ops::permute(call.tensor(0, "x"), sizes_of(call.at(1, "dims").as_list("dims"), "permute")));
}

Value squeeze(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::squeeze(x, dim_at(call, 1, "dim", x)));
}

Value unsqueeze(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::unsqueeze(x, new_dim_at(call, 1, "dim", x, 0)));
}

Value expand(const CallArguments& call) { return Value(ops::expand(call.tensor(0, "x"), sizes_at(call, 1, "sizes"))); }

Value select(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::select(x, dim_at(call, 1, "dim", x), call.integer(2, "index")));
}

Value narrow(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  const int dim = dim_at(call, 1, "dim", x);
  const std::int64_t size = size_of_dim(x, dim), given = call.integer(2, "start"), length = call.integer(3, "length");
  const std::int64_t start = given < 0 ? given + size : given;
  if (start < 0 || start > size || length < 0 || length > size - start)
    throw Error(str("start ", given, " and length ", length, " of dim ", dim, ", which has ", size, " positions"),
                "give a range within the dim");
  return Value(ops::slice(x, dim, start, start + length));
}

Value split(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return as_list(ops::split(x, call.integer(1, "split_size"), dim_at(call, 2, "dim", x, 0)));
}

Value chunk(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  const std::int64_t count = call.integer(1, "chunks");
  const int dim = dim_at(call, 2, "dim", x, 0);
  const auto most = static_cast<std::int64_t>(scenario::limits::list_items);
  if (size_of_dim(x, dim) == 0 && count > most)
    throw Error(str(count, " chunks of a dim without elements"), str("give at most ", most));
  const auto bounded = std::clamp<std::int64_t>(count, 0, std::numeric_limits<int>::max());
  return as_list(ops::chunk(x, static_cast<int>(bounded), dim));
}

Value stack(const CallArguments& call) {
  const std::vector<Tensor> tensors = tensors_at(call, 0, "tensors");
  return Value(ops::stack(tensors, new_dim_at(call, 1, "dim", tensors[0], 0)));
}

Value contiguous(const CallArguments& call) { return Value(ops::contiguous(call.tensor(0, "x"))); }

}  // namespace lockstep::run::functions
