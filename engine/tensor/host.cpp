#include "engine/tensor/host.hpp"

#include <cstring>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep {

namespace {

// Element sizes are 1, 2, 4 or 8 bytes; the compiler turns each of these copies into one move.
void copy_element(std::byte* to, const std::byte* from, std::size_t bytes) {
  switch (bytes) {
    case 1:
      std::memcpy(to, from, 1);
      break;
    case 2:
      std::memcpy(to, from, 2);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    default:
      std::memcpy(to, from, 8);
  }
}

}  // namespace

void host::write_elements(const Tensor& to, const void* from) {
  if (to.is_meta()) return;
  const device::Access range = update(to);
  if (range.bytes == 0) return;
  if (to.is_contiguous()) {
    device::write_from_host(*range.memory, range.offset, from, range.bytes);
    return;
  }
  std::vector<std::byte> bytes(range.bytes);
  device::read_to_host(bytes.data(), *range.memory, range.offset, range.bytes);
  const std::size_t element = size_of(to.dtype());
  const auto* next = static_cast<const std::byte*>(from);
  for_each_offset(to.sizes(), to.strides(), [&](std::int64_t offset) {
    copy_element(bytes.data() + element_offset(static_cast<std::size_t>(offset), element), next, element);
    next += element;
  });
  device::write_from_host(*range.memory, range.offset, bytes.data(), range.bytes);
}

std::vector<std::byte> to_bytes(const Tensor& tensor) {
  if (tensor.is_meta()) {
    throw Error(str("reading ", describe(tensor), ": a meta tensor has no values"), "make it on cpu or sim");
  }
  const device::Access range = read(tensor);
  std::vector<std::byte> bytes(range.bytes);
  if (range.bytes == 0) return bytes;
  device::read_to_host(bytes.data(), *range.memory, range.offset, range.bytes);
  if (tensor.is_contiguous()) return bytes;
  const std::size_t element = size_of(tensor.dtype());
  std::vector<std::byte> out(static_cast<std::size_t>(tensor.num_bytes()));
  std::byte* next = out.data();
  host::for_each_offset(tensor.sizes(), tensor.strides(), [&](std::int64_t offset) {
    copy_element(next, bytes.data() + element_offset(static_cast<std::size_t>(offset), element), element);
    next += element;
  });
  return out;
}

namespace {

template <class To>
std::vector<To> to_numbers(const Tensor& tensor) {
  const std::vector<std::byte> bytes = to_bytes(tensor);
  std::vector<To> out(static_cast<std::size_t>(tensor.num_elements()));
  dispatch_all(tensor.dtype(), [&]<class T>() {
    for (std::size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + element_offset(i, sizeof(T)), sizeof(T));
      out[i] = static_cast<To>(static_cast<ComputeType<T>>(value));
    }
  });
  return out;
}

void require_one_element(const Tensor& tensor) {
  if (tensor.num_elements() != 1) {
    throw Error(str("item: ", describe(tensor), " holds ", tensor.num_elements(), " elements, not 1"),
                "select one, or reduce it first");
  }
}

}  // namespace

std::vector<double> to_doubles(const Tensor& tensor) { return to_numbers<double>(tensor); }

std::vector<std::int64_t> to_integers(const Tensor& tensor) {
  LOCKSTEP_CHECK(!is_floating(tensor.dtype()), "the integers of ", describe(tensor));
  return to_numbers<std::int64_t>(tensor);
}

double item(const Tensor& tensor) {
  require_one_element(tensor);
  return to_doubles(tensor)[0];
}

std::int64_t integer_item(const Tensor& tensor) {
  require_one_element(tensor);
  return to_integers(tensor)[0];
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return str(name_of(tensor.dtype()), " ", to_text(tensor.sizes()), " on ", device::to_text(tensor.device()));
}

}  // namespace lockstep
