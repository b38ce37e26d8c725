// The host random generator of a rank: MT19937 with PyTorch's ways of turning words into numbers, so that a seed gives
// the weights and inputs that PyTorch draws on the CPU. Draws happen on the host and are copied to the device.
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

  void seed(std::uint64_t value);  // also drops the cached normal sample
  std::uint32_t next32();
  std::uint64_t next64();  // first word is the high half
  float uniform32();       // [0, 1), 24 bits
  double uniform64();      // [0, 1), 53 bits

  // Fill `count` elements in memory order: u * (high - low) + low, fused, as PyTorch rounds it.
  void uniform(float* out, std::int64_t count, double low, double high);
  void uniform(double* out, std::int64_t count, double low, double high);
  // Normal samples; 16 or more contiguous float32/float64 elements take the block path, fewer the cached-pair path.
  void normal(float* out, std::int64_t count, double mean, double std);
  void normal(double* out, std::int64_t count, double mean, double std);
  // One sample of the cached-pair path (16-bit types, non-contiguous tensors).
  double normal_single();
  // Integers in [low, high).
  std::int64_t integer(std::int64_t low, std::int64_t high);
  std::vector<std::int64_t> permutation(std::int64_t count);
  // Whether an element survives dropout: a float64 uniform < 1 - p.
  bool keep(double drop_probability) { return uniform64() < 1.0 - drop_probability; }

  // Whole state, for saving around recomputation.
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
