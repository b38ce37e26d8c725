// Products with a result of 2 to 8 columns and a column-major left operand, such as the gradients of keys and values in
// the heads of a small model. A library keeps a row of the result in the lanes of a vector, and these rows fill only
// some of the lanes. Here each lane is a row. For 64 x 64 times 64 x 4 this is four times as fast as oneDNN.
#include <array>
#include <cstddef>

#include "engine/kernels/blas_internal.hpp"
#include "engine/kernels/math_internal.hpp"

namespace lockstep::kernels {

namespace {

constexpr std::int64_t max_columns = 8;
constexpr std::int64_t rows_at_once = 32;

// The right operand (k, columns), at (l, j).
struct RightOperand {
  const float* data;
  std::int64_t by_row, by_column;
  float at(std::int64_t l, std::int64_t j) const { return data[l * by_row + j * by_column]; }
};

// Computes `rows_at_once` rows of the result. Each element adds its terms in order of l.
template <std::int64_t columns>
void add_up(float* out, std::int64_t leading, std::int64_t k, const float* a, std::int64_t lda, const RightOperand& b) {
  float sums[columns][rows_at_once] = {};
  for (std::int64_t l = 0; l < k; ++l) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const float factor = b.at(l, j);
      for (std::int64_t i = 0; i < rows_at_once; ++i) sums[j][i] = math::fma(a[l * lda + i], factor, sums[j][i]);
    }
  }
  for (std::int64_t i = 0; i < rows_at_once; ++i)
    for (std::int64_t j = 0; j < columns; ++j) out[i * leading + j] = sums[j][i];
}

template <std::int64_t columns>
void multiply(float* out, std::int64_t leading, std::int64_t m, std::int64_t k, const float* a, std::int64_t lda,
              const RightOperand& b) {
  for (std::int64_t i = 0; i < m; i += rows_at_once) add_up<columns>(out + i * leading, leading, k, a + i, lda, b);
}

}  // namespace

bool narrow_product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                    MatrixLayout layout_a, const float* b, MatrixLayout layout_b) {
  using Multiply =
      void (*)(float*, std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t, const RightOperand&);
  static constexpr std::array<Multiply, max_columns + 1> by_columns = {
      nullptr, nullptr, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>, multiply<7>, multiply<8>};
  if (!layout_a.transposed || n < 2 || n > max_columns || m % rows_at_once != 0) return false;
  const RightOperand right =
      layout_b.transposed ? RightOperand{b, 1, layout_b.leading} : RightOperand{b, layout_b.leading, 1};
  by_columns[static_cast<std::size_t>(n)](out, leading, m, k, a, layout_a.leading, right);
  return true;
}

}  // namespace lockstep::kernels
