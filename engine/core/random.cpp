#include "engine/core/random.hpp"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "engine/core/error.hpp"

namespace lockstep {

Generator::Generator() { seed(default_seed); }

void Generator::seed(std::uint64_t value) {
  state_.engine.seed(static_cast<std::uint32_t>(value));
  state_.has_cached = false;
}

std::uint32_t Generator::next32() { return static_cast<std::uint32_t>(state_.engine()); }

std::uint64_t Generator::next64() {
  const std::uint64_t high = next32();
  return (high << 32) | next32();
}

float Generator::uniform32() { return static_cast<float>(next32() & 0xffffffu) * 0x1p-24f; }
double Generator::uniform64() { return static_cast<double>(next64() & ((1ull << 53) - 1)) * 0x1p-53; }

void Generator::uniform(float* out, std::int64_t count, double low, double high) {
  const float from = static_cast<float>(low), to = static_cast<float>(high);
  for (std::int64_t i = 0; i < count; ++i) out[i] = std::fma(uniform32(), to - from, from);
}

void Generator::uniform(double* out, std::int64_t count, double low, double high) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = std::fma(uniform64(), high - low, low);
}

double Generator::normal_single() {
  if (state_.has_cached) {
    state_.has_cached = false;
    return state_.cached;
  }
  const double u1 = uniform64();
  const double u2 = uniform64();
  const double radius = std::sqrt(-2.0 * std::log1p(-u2));
  const double angle = 2.0 * std::numbers::pi * u1;
  state_.cached = radius * std::sin(angle);
  state_.has_cached = true;
  return radius * std::cos(angle);
}

template <class T>
void Generator::fill_normal_blocks(T* out, std::int64_t count, double mean, double std) {
  const auto transform = [&](T* block) {
    for (int j = 0; j < 8; ++j) {
      const T u1 = T(1) - block[j];
      const T u2 = block[j + 8];
      const T radius = std::sqrt(T(-2) * std::log(u1));
      const T angle = T(2.0 * std::numbers::pi) * u2;
      block[j] = radius * std::cos(angle) * T(std) + T(mean);
      block[j + 8] = radius * std::sin(angle) * T(std) + T(mean);
    }
  };
  uniform(out, count, 0.0, 1.0);
  for (std::int64_t i = 0; i + 16 <= count; i += 16) transform(out + i);
  if (count % 16 != 0) {
    uniform(out + count - 16, 16, 0.0, 1.0);
    transform(out + count - 16);
  }
}

void Generator::normal(float* out, std::int64_t count, double mean, double std) {
  if (count >= 16) return fill_normal_blocks(out, count, mean, std);
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(normal_single() * std + mean);
}

void Generator::normal(double* out, std::int64_t count, double mean, double std) {
  if (count >= 16) return fill_normal_blocks(out, count, mean, std);
  for (std::int64_t i = 0; i < count; ++i) out[i] = normal_single() * std + mean;
}

std::int64_t Generator::integer(std::int64_t low, std::int64_t high) {
  if (low >= high) throw Error(str("randint: the range [", low, ", ", high, ") is empty"), "give a high above low");
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::uint64_t draw = range < (1ull << 28) ? next32() % range : next64() % range;  // as in PyTorch 2.15
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + draw);
}

std::vector<std::int64_t> Generator::permutation(std::int64_t count) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = 0; i + 1 < count; ++i) {
    const auto other = i + static_cast<std::int64_t>(next32() % static_cast<std::uint64_t>(count - i));
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(other)]);
  }
  return order;
}

}  // namespace lockstep
