// Activations, layers and norms as functions of their weights.
#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

// The number of the last dims whose sizes are `normalized_shape`.
int num_normalized_dims(const CallArguments& call, const Tensor& x) {
  const Dims shape = integers_at(call, 1, "normalized_shape");
  const Dims& sizes = global_sizes(x);
  const int first = sizes.size() - shape.size();
  bool fits = first >= 0 && !shape.empty();
  for (int i = 0; fits && i < shape.size(); ++i) fits = sizes[first + i] == shape[i];
  if (!fits)
    throw Error(str("normalized_shape is ", to_text(shape), " and x is ", describe_sharded(x)),
                "give the sizes of the last dims of x, one or more");
  return shape.size();
}

// An integer for height and width, or one for each.
Dims pair_at(const CallArguments& call, const char* key, std::int64_t missing) {
  const Value* given = call.keyword(key);
  if (!given) return {missing, missing};
  if (!given->is(Value::Kind::list)) return {given->as_int(key), given->as_int(key)};
  const Dims pair = sizes_of(given->as_list(key), call.name());
  if (pair.size() != 2) throw Error(str(key, " is ", to_text(pair)), "give an integer, or [height, width]");
  return pair;
}

}  // namespace

Value tanh(const CallArguments& call) { return Value(ops::tanh(call.tensor(0, "x"))); }
Value sigmoid(const CallArguments& call) { return Value(ops::sigmoid(call.tensor(0, "x"))); }
Value log_softmax(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::log_softmax(x, dim_at(call, 1, "dim", x, -1)));
}

Value linear(const CallArguments& call) {
  return Value(ops::linear(call.tensor(0, "x"), call.tensor(1, "weight"), tensor_or_null(call, 2, "bias")));
}

Value attention(const CallArguments& call) {
  const Value* mask = call.keyword("attn_mask");
  const Tensor* allowed = mask && !mask->is_none() ? &mask->as_tensor("attn_mask") : nullptr;
  return Value(ops::attention(call.tensor(0, "query"), call.tensor(1, "key"), call.tensor(2, "value"),
                              flag_at(call, "is_causal"), number_at(call, "dropout_p", 0.0), allowed));
}

Value layer_norm(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::layer_norm(x, num_normalized_dims(call, x), tensor_or_null(call, 2, "weight"),
                               tensor_or_null(call, 3, "bias"), number_at(call, "eps", 1e-5)));
}

Value rms_norm(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(
      ops::rms_norm(x, num_normalized_dims(call, x), tensor_or_null(call, 2, "weight"), number_at(call, "eps", 1e-6)));
}

Value batch_norm(const CallArguments& call) {
  return Value(ops::batch_norm(call.tensor(0, "x"), tensor_or_null(call, 3, "weight"), tensor_or_null(call, 4, "bias"),
                               tensor_or_null(call, 1, "running_mean"), tensor_or_null(call, 2, "running_var"),
                               flag_at(call, "training"), number_at(call, "momentum", 0.1),
                               number_at(call, "eps", 1e-5)));
}

Value conv2d(const CallArguments& call) {
  return Value(ops::conv2d(call.tensor(0, "x"), call.tensor(1, "weight"), tensor_or_null(call, 2, "bias"),
                           pair_at(call, "stride", 1), pair_at(call, "padding", 0)));
}

}  // namespace lockstep::run::functions
