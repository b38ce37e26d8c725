// The host random generator of a rank: MT19937, and PyTorch's conversions from its words to numbers. A seed gives the
// same weights and inputs as in PyTorch on the CPU. Numbers are drawn on the host and copied to the device.
//
//   Generator generator;  generator.seed(42);  generator.normal(buffer, count, 0.0, 1.0);
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace lockstep {

class Generator {
 public:
  static constexpr std::uint64_t default_seed = 67280421310721ull;
  Generator();

  void seed(std::uint64_t value);  // uses the low 32 bits; discards the cached normal sample
  std::uint32_t next32();
  std::uint64_t next64();  // the first 32-bit word is the high half
  float uniform32();       // [0, 1), 24 bits
  double uniform64();      // [0, 1), 53 bits

  // Fill `count` elements in memory order with u * (high - low) + low, as a fused multiply-add, as PyTorch does.
  void uniform(float* out, std::int64_t count, double low, double high);
  void uniform(double* out, std::int64_t count, double low, double high);
  // Normal samples. 16 or more elements are drawn in blocks of 16; fewer are drawn in pairs, of which the second sample
  // is cached.
  void normal(float* out, std::int64_t count, double mean, double std);
  void normal(double* out, std::int64_t count, double mean, double std);
  // One sample, drawn in pairs (for 16-bit types and non-contiguous tensors).
  double normal_single();
  // An integer in [low, high). Throws Error when the range is empty.
  std::int64_t integer(std::int64_t low, std::int64_t high);
  // A random permutation of 0 .. count - 1.
  std::vector<std::int64_t> permutation(std::int64_t count);
  // Whether dropout keeps an element: a float64 uniform sample below 1 - p.
  bool keep(double drop_probability) { return uniform64() < 1.0 - drop_probability; }

  // The full state, saved and restored around a recomputation.
  struct State {
    std::mt19937 engine;
    bool has_cached = false;
    double cached = 0.0;
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  template <class T>
  void fill_normal_blocks(T* out, std::int64_t count, double mean, double std);
  State state_;
};

}  // namespace lockstep
