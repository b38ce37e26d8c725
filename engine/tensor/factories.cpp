// Factories: uninitialised, constant and random tensors, and tensors of host values.
#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/stand_in_memory.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/tensor/host.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/types_made.hpp"

namespace lockstep {

namespace {

// Converts a host value to the element type; as bool, every number except 0 is true.
template <class T, class From>
T convert(From value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != From(0);
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Fills the tensor with the values that successive calls of `next` return, in row-major order.
template <class T, class F>
void write_each(const Tensor& to, F&& next) {
  const auto count = static_cast<std::size_t>(to.num_elements());
  const auto elements = std::make_unique<T[]>(count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = next();
  host::write_elements(to, elements.get());
}

template <class From>
Tensor from_host(const std::vector<From>& values, const Dims& sizes, DType dtype, device::Device device) {
  if (static_cast<std::int64_t>(values.size()) != num_elements(sizes)) {
    throw Error(
        str("from_values: ", values.size(), " values for sizes ", to_text(sizes), ", which hold ", num_elements(sizes)),
        "give as many values as the sizes hold");
  }
  if (dtype == DType::int32 || (dtype == DType::int64 && std::is_floating_point_v<From>))
    for (const From value : values) raw::require_representable("from_values", static_cast<double>(value), dtype);
  Tensor out = empty(sizes, dtype, device);
  dispatch_all(dtype, [&]<class T>() {
    auto next = values.begin();
    write_each<T>(out, [&] { return convert<T>(*next++); });
  });
  return out;
}

Generator& generator() { return RankContext::current().generator(); }

void require_floating(const char* operation, const Tensor& tensor) {
  if (!is_floating(tensor.dtype())) {
    throw Error(str(operation, ": ", describe(tensor), " is not of a floating-point type"),
                "use randint, or a floating-point type");
  }
}

// The same elements in the order of their memory.
Tensor in_memory_order(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : permute(tensor, raw::dims_in_memory_order(tensor));
}

}  // namespace

namespace {

// A service of the rank.
struct TypesMade {
  explicit TypesMade(RankContext&) {}
  bool float16 = false, bfloat16 = false;
};

void note_type(DType dtype) {
  if (size_of(dtype) != 2) return;
  TypesMade& made = RankContext::current().service<TypesMade>();
  (dtype == DType::bfloat16 ? made.bfloat16 : made.float16) = true;
}

Tensor tensor_over(device::Device device, std::size_t bytes, device::MemoryPtr memory, const Dims& sizes, DType dtype) {
  note_type(dtype);
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::make_shared<Storage>(device, bytes, std::move(memory));
  impl->sizes = sizes;
  impl->strides = contiguous_strides(sizes);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

}  // namespace

std::optional<DType> coarsest_type_made() {
  const TypesMade& made = RankContext::current().service<TypesMade>();
  if (made.bfloat16) return DType::bfloat16;
  return made.float16 ? std::optional(DType::float16) : std::nullopt;
}

Tensor empty(const Dims& sizes, DType dtype, device::Device device) {
  const std::size_t bytes = checked_bytes(sizes, size_of(dtype), "empty");
  device::require_available(device.kind);
  device::MemoryPtr memory;
  // A block that has neither values nor statistics is left out.
  if (device::is_counted(device)) memory = device::allocate(device, bytes);
  return tensor_over(device, bytes, std::move(memory), sizes, dtype);
}

Tensor empty_pinned(const Dims& sizes, DType dtype, device::Device user) {
  const std::size_t bytes = checked_bytes(sizes, size_of(dtype), "empty_pinned");
  return tensor_over(device::host_device, bytes, device::allocate_pinned(user, bytes), sizes, dtype);
}

Tensor empty_like(const Tensor& like) { return empty(like.sizes(), like.dtype(), like.device()); }

Tensor full(const Dims& sizes, Number value, DType dtype, device::Device device) {
  const bool rounds = dtype == DType::int64 && !value.is_exact();  // the kernel takes a double
  if (!rounds) raw::require_representable("full", value.value(), dtype);
  Tensor out = empty(sizes, dtype, device);
  if (rounds)
    raw::run_kernel("full", kernels::copy, out,
                    expand(from_values(std::vector<std::int64_t>{value.integer()}, Dims(), dtype, device), sizes));
  else
    raw::run_kernel(
        "full",
        [number = value.value()](kernels::Execution on, const kernels::View& to) { kernels::fill(on, to, number); },
        out);
  return out;
}

Tensor zeros_like(const Tensor& like) { return sharded_like(zeros(like.sizes(), like.dtype(), like.device()), like); }
Tensor zeros(const Dims& sizes, DType dtype, device::Device device) { return full(sizes, 0.0, dtype, device); }
Tensor ones(const Dims& sizes, DType dtype, device::Device device) { return full(sizes, 1.0, dtype, device); }

Tensor arange(double start, double end, double step, DType dtype, device::Device device) {
  if (step == 0.0 || !std::isfinite(start) || !std::isfinite(end) || !std::isfinite(step) || (end - start) / step < 0) {
    throw Error(str("arange: from ", start, " to ", end, " in steps of ", step, " does not end"),
                "give finite numbers and a step that leads from start to end");
  }
  const double length = std::ceil((end - start) / step);
  if (!(length <= static_cast<double>(max_tensor_bytes)))
    throw Error(str("arange: from ", start, " to ", end, " in steps of ", step, " has ", length, " elements"),
                str("a tensor has at most ", max_tensor_bytes, " bytes"));
  if (length > 0 && !is_floating(dtype))
    for (const double number : {start, start + (length - 1) * step})
      raw::require_representable("arange", std::trunc(number), dtype);
  const auto count = static_cast<std::int64_t>(length);
  Tensor out = empty({count}, dtype, device);
  raw::run_kernel(
      "arange", [=](kernels::Execution on, const kernels::View& to) { kernels::arange(on, to, start, step); }, out);
  return out;
}

Tensor from_values(const std::vector<double>& values, const Dims& sizes, DType dtype, device::Device device) {
  return from_host(values, sizes, dtype, device);
}
Tensor from_values(const std::vector<std::int64_t>& values, const Dims& sizes, DType dtype, device::Device device) {
  return from_host(values, sizes, dtype, device);
}

void uniform_(const Tensor& tensor, double low, double high) {
  require_floating("uniform", tensor);
  raw::require_not_expanded("uniform", tensor);
  if (tensor.is_meta()) return tensor.bump_version();  // draws nothing
  const Tensor to = in_memory_order(tensor);
  const std::int64_t count = tensor.num_elements();
  if (tensor.dtype() == DType::float64) {
    std::vector<double> drawn(static_cast<std::size_t>(count));
    generator().uniform(drawn.data(), count, low, high);
    host::write_elements(to, drawn.data());
  } else {
    std::vector<float> drawn(static_cast<std::size_t>(count));
    generator().uniform(drawn.data(), count, low, high);
    auto next = drawn.begin();
    dispatch_floating(tensor.dtype(), [&]<class T>() { write_each<T>(to, [&] { return convert<T>(*next++); }); });
  }
  tensor.bump_version();
}

void normal_(const Tensor& tensor, double mean, double std) {
  require_floating("normal", tensor);
  raw::require_not_expanded("normal", tensor);
  if (tensor.is_meta()) return tensor.bump_version();
  if (!(std >= 0.0)) throw Error(str("normal: a standard deviation of ", std), "give 0 or more");
  const std::int64_t count = tensor.num_elements();
  const bool in_blocks = tensor.is_contiguous() && count >= 16;
  if (tensor.is_contiguous() && tensor.dtype() == DType::float32) {
    std::vector<float> drawn(static_cast<std::size_t>(count));
    generator().normal(drawn.data(), count, mean, std);
    host::write_elements(tensor, drawn.data());
  } else if (tensor.is_contiguous() && tensor.dtype() == DType::float64) {
    std::vector<double> drawn(static_cast<std::size_t>(count));
    generator().normal(drawn.data(), count, mean, std);
    host::write_elements(tensor, drawn.data());
  } else if (in_blocks) {
    // The 16-bit types draw in float32 in blocks of 16 elements. If 16 does not divide the count, the last 16 elements
    // are drawn again. float32 differs: it draws for all elements first. (Observed in PyTorch 2.15.)
    std::vector<float> drawn(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i + 16 <= count; i += 16) generator().normal(drawn.data() + i, 16, mean, std);
    if (count % 16 != 0) generator().normal(drawn.data() + count - 16, 16, mean, std);
    auto next = drawn.begin();
    dispatch_floating(tensor.dtype(), [&]<class T>() { write_each<T>(tensor, [&] { return convert<T>(*next++); }); });
  } else {
    Generator& draws = generator();
    const Tensor to = in_memory_order(tensor);
    dispatch_floating(tensor.dtype(), [&]<class T>() {
      write_each<T>(to, [&] { return convert<T>(draws.normal_single() * std + mean); });
    });
  }
  tensor.bump_version();
}

Tensor rand(const Dims& sizes, DType dtype, device::Device device) {
  Tensor out = empty(sizes, dtype, device);
  uniform_(out, 0.0, 1.0);
  return out;
}

Tensor randn(const Dims& sizes, DType dtype, device::Device device) {
  Tensor out = empty(sizes, dtype, device);
  normal_(out, 0.0, 1.0);
  return out;
}

namespace {

void require_drawable(std::int64_t low, std::int64_t high, DType dtype) {
  for (const std::int64_t bound : {low, high - 1}) {
    if (dtype != DType::int64) raw::require_representable("randint", static_cast<double>(bound), dtype);
    if (dtype == DType::boolean && bound != 0 && bound != 1)
      throw Error(str("randint: the number ", bound, " does not fit bool"), "draw from 0 to 2, or give another type");
  }
}

// The end of the range whose numbers stay below `high` when they are rounded to a floating type, as PyTorch chooses it.
std::int64_t drawn_below(std::int64_t high, DType dtype) {
  if (!is_floating(dtype) || dtype == DType::float64) return high;
  const int digits = dtype == DType::float32 ? 24 : dtype == DType::float16 ? 11 : 8;
  const auto largest = static_cast<float>(high - 1);
  const float rounded = dtype == DType::float16    ? static_cast<float>(Half(largest))
                        : dtype == DType::bfloat16 ? static_cast<float>(BFloat16(largest))
                                                   : largest;
  if (static_cast<std::int64_t>(rounded) < high) return high;
  const int exponent = std::ilogb(static_cast<double>(high - 1));
  return static_cast<std::int64_t>(rounded) - (std::int64_t{1} << (exponent - digits + 1));
}

}  // namespace

Tensor randint(std::int64_t low, std::int64_t high, const Dims& sizes, DType dtype, device::Device device) {
  require_drawable(low, high, dtype);
  high = drawn_below(high, dtype);
  Tensor out = empty(sizes, dtype, device);
  if (out.is_meta()) return out;
  Generator& draws = generator();
  dispatch_all(dtype, [&]<class T>() { write_each<T>(out, [&] { return convert<T>(draws.integer(low, high)); }); });
  return out;
}

Tensor randperm(std::int64_t count, device::Device device) {
  if (count < 0) throw Error(str("randperm: ", count, " elements"), "give 0 or more");
  Tensor out = empty({count}, DType::int64, device);
  if (out.is_meta()) return out;
  const std::vector<std::int64_t> order = generator().permutation(count);
  host::write_elements(out, order.data());
  return out;
}

}  // namespace lockstep
