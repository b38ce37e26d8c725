#include "engine/core/shape.hpp"

namespace lockstep {

void checked_detail::refuse_sizes(const Dims& sizes) {
  throw Error(str("sizes ", to_text(sizes), ": their product does not fit in 64 bits"), "give smaller sizes");
}

std::size_t checked_bytes(const Dims& sizes, std::size_t element, const char* operation) {
  std::int64_t extent = static_cast<std::int64_t>(element);
  bool has_elements = true;
  for (int dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] < 0)
      throw Error(str(operation, ": size ", sizes[dim], " at dim ", dim, " of ", to_text(sizes)),
                  "give sizes of 0 or more");
    if (sizes[dim] == 0) {
      has_elements = false;
    } else if (__builtin_mul_overflow(extent, sizes[dim], &extent) || extent > max_tensor_bytes) {
      throw Error(str(operation, ": sizes ", to_text(sizes), " of ", element, " bytes per element exceed the limit of ",
                      max_tensor_bytes, " bytes per tensor"),
                  "give smaller sizes");
    }
  }
  return has_elements ? static_cast<std::size_t>(extent) : 0;
}

Dims contiguous_strides(const Dims& sizes) {
  Dims strides(sizes.size(), 1);
  for (int i = sizes.size() - 2; i >= 0; --i)
    if (__builtin_mul_overflow(strides[i + 1], std::max<std::int64_t>(sizes[i + 1], 1), &strides[i])) [[unlikely]]
      checked_detail::refuse_sizes(sizes);
  return strides;
}

bool is_contiguous(const Dims& sizes, const Dims& strides) {
  std::int64_t expected = 1;
  for (int i = sizes.size() - 1; i >= 0; --i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected = bounded_product(expected, sizes[i]);
  }
  return true;
}

Dims broadcast_sizes(const Dims& a, const Dims& b, const char* operation) {
  const int num_dims = std::max(a.size(), b.size());
  Dims out(num_dims, 1);
  for (int back = 1; back <= num_dims; ++back) {
    const std::int64_t size_a = back <= a.size() ? a[a.size() - back] : 1;
    const std::int64_t size_b = back <= b.size() ? b[b.size() - back] : 1;
    if (size_a != size_b && size_a != 1 && size_b != 1) {
      throw Error(str(operation, ": sizes ", to_text(a), " and ", to_text(b), " do not broadcast: dim -", back, " is ",
                      size_a, " and ", size_b),
                  "reshape one of them so that each dim agrees or is 1");
    }
    out[num_dims - back] = size_a == 1 ? size_b : size_a;
  }
  return out;
}

int normalize_dim(std::int64_t dim, int num_dims, const char* operation) {
  const int range = std::max(num_dims, 1);
  if (dim < -range || dim >= range) {
    throw Error(str(operation, ": dim ", dim, " is out of range for a tensor of ", num_dims, " dims"),
                str("use -", range, " to ", range - 1));
  }
  return static_cast<int>(dim < 0 ? dim + range : dim);
}

std::string to_text(const Dims& dims) {
  std::string out = "(";
  for (int i = 0; i < dims.size(); ++i) out += str(i ? ", " : "", dims[i]);
  return out + (dims.size() == 1 ? ",)" : ")");
}

}  // namespace lockstep
