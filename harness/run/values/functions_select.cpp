// Comparisons of tensors, and functions that choose elements by conditions, sizes or positions.
#include <limits>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

DType type_beside(std::int64_t number, std::string_view subject, const Tensor& like) {
  using Narrow = std::numeric_limits<std::int32_t>;
  if (like.dtype() != DType::int32) return DType::int64;
  if (number < Narrow::min() || number > Narrow::max())
    throw Error(str(subject, ": ", number, " does not fit int32, the type of ", describe(like)),
                "cast the tensor to int64");
  return DType::int32;
}

// A number or boolean as a tensor without dims. Beside a floating-point tensor it has the type of that tensor, as a
// number in PyTorch; beside a sharded one it is replicated over the same mesh.
Tensor beside(const Value& value, std::string_view subject, const Tensor& like) {
  if (value.is_tensor() || value.is(Value::Kind::handle)) return value.as_tensor(subject);
  Tensor made;
  if (const bool* flag = value.get_if<bool>())
    made = full({}, *flag ? 1.0 : 0.0, DType::boolean, like.device());
  else if (is_floating(like.dtype()))
    made = full({}, value.as_number(subject), like.dtype(), like.device());
  else if (const std::int64_t* integer = value.get_if<std::int64_t>())
    made = from_values(std::vector<std::int64_t>{*integer}, {}, type_beside(*integer, subject, like), like.device());
  else
    made = full({}, value.as_number(subject), DType::float32, like.device());
  if (!like.is_sharded()) return made;
  return make_sharded(made, {like.layout()->mesh, Placements(like.layout()->placements.size()), {}});
}

using Compare = Tensor (*)(const Tensor&, const Tensor&);
Value compared(const CallArguments& call, const char* operation, Compare compare) {
  const Tensor& x = call.tensor(0, "x");
  const Tensor other = beside(call.at(1, "other"), "other", x);
  return noted_result(operation, {x, other}, compare(x, other));
}

using Reduce = Tensor (*)(const Tensor&, int, bool);
Value extreme(const CallArguments& call, const char* operation, Reduce reduce) {
  const Tensor& x = call.tensor(0, "x");
  return noted_result(operation, {x}, reduce(x, dim_at(call, 1, "dim", x), flag_at(call, "keepdim")));
}

}  // namespace

Value eq(const CallArguments& call) { return compared(call, "eq", &ops::eq); }
Value ne(const CallArguments& call) { return compared(call, "ne", &ops::ne); }
Value lt(const CallArguments& call) { return compared(call, "lt", &ops::lt); }
Value le(const CallArguments& call) { return compared(call, "le", &ops::le); }
Value gt(const CallArguments& call) { return compared(call, "gt", &ops::gt); }
Value ge(const CallArguments& call) { return compared(call, "ge", &ops::ge); }

Value where(const CallArguments& call) {
  const Tensor& condition = call.tensor(0, "condition");
  const Value &input = call.at(1, "input"), &other = call.at(2, "other");
  const Tensor& like = input.is_tensor()   ? input.as_tensor("input")
                       : other.is_tensor() ? other.as_tensor("other")
                                           : condition;
  const Tensor a = beside(input, "input", like), b = beside(other, "other", like);
  return noted_result("where", {condition, a, b}, ops::where(condition, a, b));
}

Value amax(const CallArguments& call) { return extreme(call, "max", &ops::max); }
Value amin(const CallArguments& call) { return extreme(call, "min", &ops::min); }
Value argmax(const CallArguments& call) { return extreme(call, "argmax", &ops::argmax); }

Value index_select(const CallArguments& call) {
  const Tensor &x = call.tensor(0, "x"), &index = call.tensor(2, "index");
  return noted_result("index_select", {x, index}, ops::index_select(x, dim_at(call, 1, "dim", x), index));
}

Value embedding(const CallArguments& call) {
  const Tensor &x = call.tensor(0, "x"), &weight = call.tensor(1, "weight");
  return noted_result("embedding", {weight, x}, ops::embedding(weight, x));
}

}  // namespace lockstep::run::functions
