// How a loss over classes counts its rows.
//
//   ops::cross_entropy(logits, targets, {.reduction = Reduction::sum, .weight = weights, .ignore_index = -100});
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/tensor/tensor.hpp"

namespace lockstep {

enum class Reduction : std::uint8_t { mean, sum, none };

inline std::string_view name_of(Reduction reduction) {
  constexpr std::string_view names[] = {"mean", "sum", "none"};
  return names[static_cast<int>(reduction)];
}

struct LossOptions {
  Reduction reduction = Reduction::mean;
  Tensor weight{};                             // (classes), of the type of the logits; undefined: 1 per class
  std::optional<std::int64_t> ignore_index{};  // the target of rows that do not count; any number
};

}  // namespace lockstep
