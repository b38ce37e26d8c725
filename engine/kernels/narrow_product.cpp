// Products whose result has 2 to 8 columns and whose left operand lies by columns: the gradients of keys and values in
// heads of a small model. Libraries hold a row of the result in the lanes of a vector, of which these fill a part; here
// the lanes are rows. At 64 x 64 times 64 x 4 four times as fast as oneDNN.
#include <array>
#include <cstddef>

#include "engine/kernels/blas_internal.hpp"
#include "engine/kernels/math_internal.hpp"

namespace lockstep::kernels {

namespace {

constexpr std::int64_t most_columns = 8;
constexpr std::int64_t rows_at_once = 32;

// The right operand (k, columns), at (l, j).
struct Right {
  const float* data;
  std::int64_t by_row, by_column;
  float at(std::int64_t l, std::int64_t j) const { return data[l * by_row + j * by_column]; }
};

// `rows_at_once` rows of the result; each element is summed from the first term to the last.
template <std::int64_t columns>
void add_up(float* out, std::int64_t leading, std::int64_t k, const float* a, std::int64_t lda, const Right& b) {
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
              const Right& b) {
  for (std::int64_t i = 0; i < m; i += rows_at_once) add_up<columns>(out + i * leading, leading, k, a + i, lda, b);
}

}  // namespace

bool narrow_product(float* out, std::int64_t leading, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                    Lay lay_a, const float* b, Lay lay_b) {
  using Multiply = void (*)(float*, std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t, const Right&);
  static constexpr std::array<Multiply, most_columns + 1> of_columns = {
      nullptr, nullptr, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>, multiply<7>, multiply<8>};
  if (!lay_a.transposed || n < 2 || n > most_columns || m % rows_at_once != 0) return false;
  const Right right = lay_b.transposed ? Right{b, 1, lay_b.leading} : Right{b, lay_b.leading, 1};
  of_columns[static_cast<std::size_t>(n)](out, leading, m, k, a, lay_a.leading, right);
  return true;
}

}  // namespace lockstep::kernels
