#include "harness/run/checks/host_values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lockstep::run {

namespace {

HostValue from_tensor(const Snapshot& snapshot) {
  HostValue value;
  value.bytes = to_bytes(snapshot.copy);
  value.operand = {snapshot.copy.dtype(), snapshot.copy.sizes(), value.bytes.data(), snapshot.storage,
                   snapshot.storage_offset};
  return value;
}

template <class T>
HostValue filled(T number, DType dtype, const Dims& sizes) {
  HostValue value;
  value.bytes.resize(checked_bytes(sizes, sizeof(T), "a number as a tensor"));
  for (std::size_t at = 0; at < value.bytes.size(); at += sizeof(T))
    std::memcpy(value.bytes.data() + at, &number, sizeof(T));
  value.operand = {dtype, sizes, value.bytes.data(), nullptr, 0};
  return value;
}

// A number as a tensor of a dtype, converted as by the factories of tensors.
HostValue from_number(const Value& number, DType dtype, const Dims& sizes) {
  return dispatch_all(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::int32_t>) {
      if (const std::int64_t* integer = number.get_if<std::int64_t>())
        return filled(static_cast<T>(*integer), dtype, sizes);
    }
    const double value = number.as_number("a number");
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      return filled(T(static_cast<float>(value)), dtype, sizes);
    else
      return filled(static_cast<T>(value), dtype, sizes);
  });
}

HostPair exact(const Value& a, const Value& b) {
  HostPair pair;
  pair.exact = true;
  pair.agree = equal(a, b);
  if (!pair.agree) pair.message = str(describe(a), " is not ", describe(b));
  // Operands with which the comparison is trivial for none and empty texts (no element) and for false (zero).
  const auto operand_of = [](const Value& value) {
    if (const bool* flag = value.get_if<bool>()) return filled<bool>(*flag, DType::boolean, {});
    const std::string* text = value.get_if<std::string>();
    const bool empty = value.is_none() || (text && text->empty());
    return filled<bool>(true, DType::boolean, empty ? Dims{0} : Dims{});
  };
  pair.actual = operand_of(a);
  pair.expected = operand_of(b);
  return pair;
}

}  // namespace

void require_comparable(const Value& number, DType dtype) {
  const double value = number.as_number("a number");
  const bool whole = number.is(Value::Kind::integer) || value == std::floor(value);
  const auto within = [value](double largest) { return !std::isfinite(value) || std::abs(value) <= largest; };
  bool fits = true;
  switch (dtype) {
    case DType::float64:
      break;
    case DType::float32:
      fits = within(0x1.fffffep127);
      break;
    case DType::bfloat16:
      fits = within(0x1.fep127);
      break;
    case DType::float16:
      fits = within(65504);
      break;
    case DType::int64:
      fits = number.is(Value::Kind::integer) || (whole && value >= -0x1p63 && value < 0x1p63);
      break;
    case DType::int32:
      fits = whole && value >= -0x1p31 && value < 0x1p31;
      break;
    case DType::boolean:
      fits = whole;
      break;
  }
  if (!fits) throw Error(str(describe(number), " cannot be compared with a tensor of ", name_of(dtype)));
}

HostPair to_host(const Snapshot& actual, const Snapshot& expected) {
  const bool left = actual.copy.defined(), right = expected.copy.defined();
  if (!left && !right) {
    if (!actual.plain.is_number() || !expected.plain.is_number()) return exact(actual.plain, expected.plain);
    const bool integers = actual.plain.is(Value::Kind::integer) && expected.plain.is(Value::Kind::integer);
    const DType dtype = integers ? DType::int64 : DType::float64;
    HostPair pair;
    pair.actual = from_number(actual.plain, dtype, {});
    pair.expected = from_number(expected.plain, dtype, {});
    return pair;
  }
  HostPair pair;
  pair.tensors = true;
  if (left) pair.actual = from_tensor(actual);
  if (right) pair.expected = from_tensor(expected);
  const Tensor& like = left ? actual.copy : expected.copy;
  const Value& number = left ? expected.plain : actual.plain;
  if (!left || !right) {
    (left ? pair.expected : pair.actual) = from_number(number, like.dtype(), like.sizes());
  }
  return pair;
}

std::string to_wire(const Snapshot& snapshot) {
  if (!snapshot.copy.defined()) return str(name_of(snapshot.plain.kind()), ":", to_text(snapshot.plain));
  const std::vector<std::byte> bytes = to_bytes(snapshot.copy);
  std::string text = str(tensor_on_wire, name_of(snapshot.copy.dtype()), " ", to_text(snapshot.copy.sizes()), ":");
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text;
}

bool is_zero_or_empty(const Snapshot& snapshot) {
  if (!snapshot.copy.defined()) {
    const Value& value = snapshot.plain;
    if (value.is_number()) return value.as_number("a number") == 0.0;
    if (const bool* flag = value.get_if<bool>()) return !*flag;
    const std::string* text = value.get_if<std::string>();
    return value.is_none() || (text && text->empty());
  }
  const std::vector<double> values = to_doubles(snapshot.copy);
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0.0; });
}

double largest_magnitude(const Snapshot& snapshot) {
  double largest = 0.0;
  const auto take = [&](double value) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  };
  if (snapshot.copy.defined())
    for (double value : to_doubles(snapshot.full.defined() ? snapshot.full : snapshot.copy)) take(value);
  else if (snapshot.plain.is_number())
    take(snapshot.plain.as_number("a number"));
  return largest;
}

bool has_nan(const verdict::Operand& operand) {
  if (!is_floating(operand.dtype)) return false;
  const std::int64_t count = num_elements(operand.sizes);
  return dispatch_floating(operand.dtype, [&]<class T>() {
    const T* values = static_cast<const T*>(operand.data);
    return std::any_of(values, values + count, [](const T& value) {
      return std::isnan(static_cast<double>(static_cast<ComputeType<T>>(value)));
    });
  });
}

bool has_nan(const Snapshot& snapshot) {
  if (!snapshot.copy.defined())
    return snapshot.plain.is(Value::Kind::number) && std::isnan(snapshot.plain.as_number(""));
  const std::vector<double> values = to_doubles(snapshot.copy);
  return std::any_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

}  // namespace lockstep::run
