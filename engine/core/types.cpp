#include "engine/core/types.hpp"

#include <algorithm>
#include <array>

namespace lockstep {

namespace {
constexpr std::array<std::string_view, num_dtypes> names = {"float32", "float64", "float16", "bfloat16",
                                                            "int64",   "int32",   "bool"};
}

std::string_view name_of(DType dtype) { return names[static_cast<std::size_t>(dtype)]; }

DType dtype_from_name(std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw Error(str("unknown element type `", name, "`"),
                "one of float32, float64, float16, bfloat16, int64, int32, bool");
  }
  return static_cast<DType>(found - names.begin());
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  const auto rank = [](DType dtype) {
    switch (dtype) {
      case DType::float64:
        return 5;
      case DType::float32:
        return 4;
      case DType::float16:
      case DType::bfloat16:
        return 3;
      case DType::int64:
        return 2;
      case DType::int32:
        return 1;
      default:
        return 0;
    }
  };
  if (rank(a) == rank(b)) return DType::float32;  // float16 with bfloat16
  return rank(a) > rank(b) ? a : b;
}

}  // namespace lockstep
