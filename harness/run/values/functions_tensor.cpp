// Factories of tensors, and functions of tensors. Some of these accept plain numbers too.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/trace/traced_layouts.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

DType dtype_for(const CallArguments& call, DType usual) {
  const Value* given = call.keyword("dtype");
  return given ? given->as_dtype("dtype") : usual;
}

// While a model is built, tensors have its dtype and device by default.
DType floating_for(const CallArguments& call) {
  return dtype_for(call, call.scope.build_options ? call.scope.build_options->dtype : DType::float32);
}

device::Device device_for(const CallArguments& call) {
  if (const Value* given = call.keyword("device")) return device_named(call.scope.session(), given->as_text("device"));
  return call.scope.build_options ? call.scope.build_options->device : call.scope.session().device;
}

Dims checked(const Dims& sizes) {
  for (std::int64_t size : sizes)
    if (size < 0) throw Error(str("a size of ", size));
  return sizes;
}

// Applies a function to a number, or to each element of a tensor.
template <class OnNumber, class OnTensor>
Value either(const CallArguments& call, OnNumber&& on_number, OnTensor&& on_tensor) {
  const Value& x = call.at(0, "x");
  if (x.is_number()) return on_number(x);
  return Value(on_tensor(x.as_tensor("x")));
}

using Reduce = Tensor (*)(const Tensor&, const Dims&, bool);
// A sum or mean over the dims of the call; over all without any.
Value reduced(const CallArguments& call, const Tensor& x, Tensor (*over_all)(const Tensor&), Reduce over_dims) {
  const bool keeps = flag_at(call, "keepdim");
  Dims dims;
  if (call.find(1, "dim"))
    for (const std::int64_t dim : integers_at(call, 1, "dim"))
      dims.push_back(normalize_dim(dim, x.num_dims(), std::string(call.name()).c_str()));
  if (dims.empty() && !keeps) return Value(over_all(x));
  if (dims.empty())
    for (int dim = 0; dim < x.num_dims(); ++dim) dims.push_back(dim);
  return Value(over_dims(x, dims, keeps));
}

// The kind of the elements of a list, in ascending order: one number makes all of them numbers.
enum class Element { boolean, integer, number };

void flatten_into(const Value& value, int depth, Dims& sizes, std::vector<double>& numbers,
                  std::vector<std::int64_t>& integers, Element& element) {
  if (value.is(Value::Kind::list)) {
    const List& items = value.as_list("value");
    const auto count = static_cast<std::int64_t>(items.size());
    if (depth == sizes.size() && !numbers.empty()) throw Error("numbers at different depths");
    if (depth == sizes.size())
      sizes.push_back(count);
    else if (sizes[depth] != count)
      throw Error(str("lists of different length: ", sizes[depth], " and ", count));
    for (const Value& item : items) flatten_into(item, depth + 1, sizes, numbers, integers, element);
    return;
  }
  if (depth != sizes.size()) throw Error("numbers at different depths");
  if (const bool* flag = value.get_if<bool>()) {
    numbers.push_back(*flag ? 1.0 : 0.0);
    integers.push_back(*flag ? 1 : 0);
    return;
  }
  numbers.push_back(value.as_number("an element"));
  if (const std::int64_t* integer = value.get_if<std::int64_t>()) {
    integers.push_back(*integer);
    element = std::max(element, Element::integer);
  } else {
    integers.push_back(0);
    element = Element::number;
  }
}

Reduction reduction_named(const Value& value) {
  if (value.is(Value::Kind::none)) return Reduction::none;
  const std::string& name = value.as_text("reduction");
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none})
    if (name == name_of(reduction)) return reduction;
  throw Error(str("reduction is '", name, "'"), "one of 'mean', 'sum', none");
}

}  // namespace

// ---- new tensors ----
Value zeros(const CallArguments& call) {
  return Value(lockstep::zeros(checked(sizes_at(call, 0, "sizes")), floating_for(call), device_for(call)));
}
Value ones(const CallArguments& call) {
  return Value(lockstep::ones(checked(sizes_at(call, 0, "sizes")), floating_for(call), device_for(call)));
}
Value randn(const CallArguments& call) {
  return Value(lockstep::randn(checked(sizes_at(call, 0, "sizes")), floating_for(call), device_for(call)));
}
Value rand(const CallArguments& call) {
  return Value(lockstep::rand(checked(sizes_at(call, 0, "sizes")), floating_for(call), device_for(call)));
}

Value full(const CallArguments& call) {
  const Value& sizes = call.at(0, "sizes");
  const Dims dims =
      sizes.is(Value::Kind::integer) ? Dims{sizes.as_int("sizes")} : sizes_of(sizes.as_list("sizes"), "full");
  const Value& value = call.at(1, "value");
  if (const bool* flag = value.get_if<bool>())
    return Value(lockstep::full(checked(dims), *flag, dtype_for(call, DType::boolean), device_for(call)));
  return Value(lockstep::full(checked(dims), number_of(value, "value"), floating_for(call), device_for(call)));
}

Value full_like(const CallArguments& call) {
  const Tensor& like = call.tensor(0, "tensor");
  const device::Device device = call.keyword("device") ? device_for(call) : like.device();
  const Tensor made =
      lockstep::full(like.sizes(), number_of(call.at(1, "value"), "value"), dtype_for(call, like.dtype()), device);
  if (like.is_sharded() && layout::has_partial(*like.layout()))
    throw Error(str("like ", describe_sharded(like), ", which has a partial placement"), "give the sizes to full()");
  return Value(sharded_like(made, like));
}

namespace {

// For integers that a double would round.
Tensor arange_of_integers(std::int64_t start, std::int64_t stop, std::int64_t step, device::Device device) {
  if (start != stop && (start < stop) != (step > 0))
    throw Error(str("arange: from ", start, " to ", stop, " in steps of ", step, " does not end"),
                "give a step that leads from start to end");
  const auto distance = [](std::int64_t a, std::int64_t b) {  // unsigned, because it may exceed the largest int64
    const auto from = static_cast<std::uint64_t>(std::min(a, b)), to = static_cast<std::uint64_t>(std::max(a, b));
    return to - from;
  };
  const std::uint64_t length = distance(start, stop), stride = distance(0, step);
  const std::uint64_t count = length / stride + (length % stride == 0 ? 0 : 1);
  const Tensor indices = lockstep::arange(0.0, static_cast<double>(count), 1.0, DType::int64, device);
  return raw::add(raw::mul(indices, step), start);
}

}  // namespace

Value arange(const CallArguments& call) {
  const Value& first = call.at(0, "start_or_stop");
  const Value* second = call.find(1, "stop");
  const Value* third = call.find(2, "step");
  const Number start = second ? number_of(first, "start") : Number(0);
  const Number stop = second ? number_of(*second, "stop") : number_of(first, "stop");
  const Number step = third ? number_of(*third, "step") : Number(1);
  if (step.value() == 0.0) throw Error("the step must not be 0");
  const bool integers = start.is_integer() && stop.is_integer() && step.is_integer();
  const DType dtype = dtype_for(call, integers ? DType::int64 : floating_for(call));
  const device::Device device = device_for(call);
  if (integers && dtype == DType::int64 && !(start.is_exact() && stop.is_exact() && step.is_exact()))
    return Value(arange_of_integers(start.integer(), stop.integer(), step.integer(), device));
  return Value(lockstep::arange(start.value(), stop.value(), step.value(), dtype, device));
}

Value tensor(const CallArguments& call) {
  Dims sizes;
  std::vector<double> numbers;
  std::vector<std::int64_t> integers;
  Element element = Element::boolean;
  flatten_into(call.at(0, "value"), 0, sizes, numbers, integers, element);
  const DType usual = element == Element::number    ? floating_for(call)
                      : element == Element::integer ? DType::int64
                      : numbers.empty()             ? floating_for(call)
                                                    : DType::boolean;
  const DType dtype = dtype_for(call, usual);
  if (element == Element::number) return Value(from_values(numbers, sizes, dtype, device_for(call)));
  return Value(from_values(integers, sizes, dtype, device_for(call)));
}

Value randint(const CallArguments& call) {
  const Value& sizes = call.at(2, "sizes");
  const Dims dims =
      sizes.is(Value::Kind::integer) ? Dims{sizes.as_int("sizes")} : sizes_of(sizes.as_list("sizes"), "randint");
  const std::int64_t low = call.integer(0, "low"), high = call.integer(1, "high");
  if (low >= high) throw Error(str("low is ", low, " and high is ", high, "; low must be less than high"));
  return Value(lockstep::randint(low, high, checked(dims), dtype_for(call, DType::int64), device_for(call)));
}

Value randperm(const CallArguments& call) {
  const std::int64_t count = call.integer(0, "n");
  if (count < 0) throw Error(str("n is ", count, "; it must not be negative"));
  const DType dtype = dtype_for(call, DType::int64);
  // The largest n whose integers the type tells apart, as in PyTorch.
  const std::int64_t most = dtype == DType::boolean    ? 2
                            : dtype == DType::bfloat16 ? 257
                            : dtype == DType::float16  ? 2049
                            : dtype == DType::float32  ? 16777217
                            : dtype == DType::int32    ? std::int64_t{1} << 31
                                                       : std::numeric_limits<std::int64_t>::max();
  if (count > most)
    throw Error(str("n is ", count, ", and ", name_of(dtype), " cannot hold so many different integers"),
                "give another type");
  return Value(raw::cast(lockstep::randperm(count, device_for(call)), dtype));
}

// ---- numbers or tensors ----
Value abs(const CallArguments& call) {
  return either(
      call,
      [](const Value& x) {
        if (const double* number = x.get_if<double>()) return Value(std::fabs(*number));
        return is_less(x, Value(0)) ? apply_unary(scenario::Op::negate, x) : x;
      },
      [](const Tensor& x) { return ops::abs(x); });
}
Value sqrt(const CallArguments& call) {
  return either(
      call,
      [](const Value& x) {
        if (x.as_number("x") < 0.0) throw Error(str("x is ", x.as_number("x"), "; it must not be negative"));
        return Value(std::sqrt(x.as_number("x")));
      },
      [](const Tensor& x) { return ops::sqrt(x); });
}
Value rsqrt(const CallArguments& call) {
  return either(
      call,
      [](const Value& x) {
        if (x.as_number("x") <= 0.0) throw Error(str("x is ", x.as_number("x"), "; it must be greater than 0"));
        return Value(1.0 / std::sqrt(x.as_number("x")));
      },
      [](const Tensor& x) { return ops::rsqrt(x); });
}
Value exp(const CallArguments& call) {
  return either(
      call, [](const Value& x) { return Value(std::exp(x.as_number("x"))); },
      [](const Tensor& x) { return ops::exp(x); });
}

Value log(const CallArguments& call) {
  return either(
      call,
      [](const Value& x) {
        if (x.as_number("x") <= 0.0) throw Error(str("x is ", x.as_number("x"), "; it must be greater than 0"));
        return Value(std::log(x.as_number("x")));
      },
      [](const Tensor& x) { return ops::log(x); });
}

Value sum(const CallArguments& call) {
  const Value& x = call.at(0, "x");
  if (x.is(Value::Kind::list)) {
    Value total(0);
    for (const Value& item : x.as_list("x")) total = apply_binary(scenario::Op::add, total, item);
    return total;
  }
  return reduced(call, x.as_tensor("x"), &ops::sum, &ops::sum);
}

Value mean(const CallArguments& call) { return reduced(call, call.tensor(0, "x"), &ops::mean, &ops::mean); }

// ---- shapes ----
Value reshape(const CallArguments& call) {
  return Value(ops::reshape(call.tensor(0, "x"), sizes_at(call, 1, "sizes")));
}

Value flatten(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  const int start = dim_at(call, 1, "start", x, 0), end = dim_at(call, 2, "end", x, -1);
  return Value(x.num_dims() == 0 ? ops::reshape(x, Dims{1}) : ops::flatten(x, start, end));
}

Value transpose(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::transpose(x, dim_at(call, 1, "dim", x, 0), dim_at(call, 2, "other", x, 1)));
}

Value cat(const CallArguments& call) {
  const std::vector<Tensor> tensors = tensors_at(call, 0, "tensors");
  return Value(ops::cat(tensors, dim_at(call, 1, "dim", tensors[0], 0)));
}

// ---- types, devices, gradients ----
Value to(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  const Value& target = call.at(1, "type_or_device");
  if (const DType* dtype = target.get_if<DType>()) {
    Tensor result = ops::cast(x, *dtype);
    if (is_floating(*dtype) || x.dtype() == *dtype) return Value(std::move(result));
    return noted_result("cast", {x}, std::move(result));
  }
  return Value(ops::to_device(x, device_named(call.scope.session(), target.as_text("type_or_device"))));
}
Value detach(const CallArguments& call) { return Value(lockstep::detach(call.tensor(0, "x"))); }
Value clone(const CallArguments& call) { return Value(ops::clone(call.tensor(0, "x"))); }
Value requires_grad(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  const Value* value = call.find(1, "value");
  set_requires_grad(x, value ? value->as_bool("value") : true);
  return Value(x);
}

// ---- layers and losses ----
Value relu(const CallArguments& call) { return Value(ops::relu(call.tensor(0, "x"))); }
Value mse_loss(const CallArguments& call) {
  return Value(ops::mse_loss(call.tensor(0, "x"), call.tensor(1, "target")));
}

Value gelu(const CallArguments& call) { return Value(ops::gelu(call.tensor(0, "x"))); }
Value softmax(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  return Value(ops::softmax(x, dim_at(call, 1, "dim", x, -1)));
}
Value cross_entropy(const CallArguments& call) {
  LossOptions options;
  if (const Value* reduction = call.keyword("reduction")) options.reduction = reduction_named(*reduction);
  const Value* weight = call.keyword("weight");
  if (weight && !weight->is(Value::Kind::none)) options.weight = weight->as_tensor("weight");
  const Value* ignored = call.keyword("ignore_index");
  if (ignored && !ignored->is(Value::Kind::none)) options.ignore_index = ignored->as_int("ignore_index");
  if (TracedLayouts* traced = TracedLayouts::active()) traced->set_loss(options);
  return Value(ops::cross_entropy(call.tensor(0, "x"), call.tensor(1, "target"), options));
}
Value dropout(const CallArguments& call) {
  return Value(ops::dropout(call.tensor(0, "x"), call.at(1, "p").as_number("p")));
}

// ---- values on the host ----
Value item(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  if (x.is_sharded())
    for (const layout::Placement& placement : x.layout()->placements)
      if (!placement.is_replicate())
        throw Error(str("x is ", describe_sharded(x), ", of which this rank holds one shard only"),
                    "take full_tensor of it in `let`");
  if (is_floating(x.dtype())) return Value(lockstep::item(x));
  const std::int64_t value = lockstep::integer_item(x);
  return x.dtype() == DType::boolean ? Value(value != 0) : Value(value);
}
Value finite(const CallArguments& call) {
  const Tensor& x = call.tensor(0, "x");
  if (x.is_sharded() && layout::has_partial(*x.layout()))
    throw Error(str("x is ", describe_sharded(x), ", which has a partial placement"), "redistribute it in `let`");
  return Value(raw::all_finite(x));
}

}  // namespace lockstep::run::functions
