// Rounding to a storage type (internal to engine/kernels).
#pragma once

#include "engine/core/types.hpp"

namespace lockstep::kernels {

// The number in the type of a tensor, where PyTorch rounds it before the operation. Beside integers it stays.
inline double rounded_to(DType dtype, double number) {
  if (dtype == DType::float16) return static_cast<double>(static_cast<float>(Half(static_cast<float>(number))));
  if (dtype == DType::bfloat16) return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(number))));
  return number;
}

}  // namespace lockstep::kernels
