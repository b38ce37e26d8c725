// The gradients of the weights of norms: sums over the rows, per column.
#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_sum_internal.hpp"
#include "engine/kernels/math_internal.hpp"
#include "engine/kernels/normalize.hpp"

namespace lockstep::kernels {

namespace {

// The sums of one block of rows for a strip of columns, for accelerators. The team loads a tile of rows, and a thread
// per column adds them.
template <class T>
struct NormWeightBlocks {
  using C = ComputeType<T>;
  C* sums;  // (blocks, 2, length): of the weights, and of the biases
  const T* grad;
  const T* x;
  const C* means;
  const C* rstds;
  std::int64_t length;
  std::int64_t num_rows;

  static constexpr std::int64_t width = 32, rows_at_once = 32;
  static constexpr std::size_t scratch_bytes = sizeof(C[2 * rows_at_once * width + 2 * rows_at_once + 2 * width]);
  std::int64_t num_strips() const { return (length + width - 1) / width; }
  template <class Team>
  KOKKOS_FUNCTION void team(const Team& team) const {
    const std::int64_t strips = (length + width - 1) / width;
    const std::int64_t block = team.index() / strips, begin = (team.index() - block * strips) * width;
    const std::int64_t columns = length - begin < width ? length - begin : width;
    const std::int64_t first = block * reduce_block;
    const std::int64_t end = num_rows - first < reduce_block ? num_rows : first + reduce_block;
    C* const g = reinterpret_cast<C*>(team.scratch());
    C* const from = g + rows_at_once * width;
    C* const rstd = from + rows_at_once * width;
    C* const shift = rstd + rows_at_once;
    C* const weight = shift + rows_at_once;
    C* const bias = weight + width;
    for_each_of(team, columns, [=](std::int64_t c) { weight[c] = bias[c] = C(0); });
    for (std::int64_t row = first; row < end; row += rows_at_once) {
      const std::int64_t here = end - row < rows_at_once ? end - row : rows_at_once;
      for_each_of(team, here * width, [=, this](std::int64_t i) {
        const std::int64_t r = i / width, c = i - r * width;
        if (c >= columns) return;
        g[i] = static_cast<C>(grad[(row + r) * length + begin + c]);
        from[i] = static_cast<C>(x[(row + r) * length + begin + c]);
      });
      for_each_of(team, here, [=, this](std::int64_t r) {
        rstd[r] = rstds[row + r];
        shift[r] = means ? -means[row + r] * rstds[row + r] : C(0);
      });
      team.barrier();
      for_each_of(team, columns, [=](std::int64_t c) {
        C to_weight = weight[c], to_bias = bias[c];
        for (std::int64_t r = 0; r < here; ++r) {
          to_weight = math::fma(g[r * width + c], math::fma(from[r * width + c], rstd[r], shift[r]), to_weight);
          to_bias += g[r * width + c];
        }
        weight[c] = to_weight;
        bias[c] = to_bias;
      });
      team.barrier();
    }
    C* const to = sums + 2 * block * length + begin;
    for_each_of(team, columns, [=, this](std::int64_t c) {
      to[c] = weight[c];
      to[length + c] = bias[c];
    });
  }
};

// Adds the block sums of one column in order.
template <class T>
struct NormWeightTotals {
  using C = ComputeType<T>;
  T* weight_grad;
  T* bias_grad;
  const C* sums;
  std::int64_t length;
  std::int64_t blocks;
  KOKKOS_FUNCTION void portable(std::int64_t column) const {
    BlockTotal<C> weight, bias;
    for (std::int64_t block = 0; block < blocks; ++block) {
      weight.add(sums[2 * block * length + column]);
      bias.add(sums[(2 * block + 1) * length + column]);
    }
    if (weight_grad) weight_grad[column] = static_cast<T>(static_cast<C>(weight.value()));
    if (bias_grad) bias_grad[column] = static_cast<T>(static_cast<C>(bias.value()));
  }
};

// Handles a strip of columns. Each column has one accumulator, to which the rows of a block are added in order; the
// total over the blocks is a float64. The loop over the columns vectorises, so the order within a column stays the
// same. Four rows are read at a time and added one after the other.
template <class T>
struct NormWeights {
  using C = ComputeType<T>;
  static constexpr std::int64_t width = 128;
  static constexpr std::int64_t rows_at_once = 4;
  T* weight_grad;
  T* bias_grad;
  const T* grad;
  const T* x;
  const C* means;
  const C* rstds;
  std::int64_t length;
  std::int64_t num_rows;

  template <std::int64_t count>
  [[gnu::always_inline]] inline void add_rows(std::int64_t row, std::int64_t begin, std::int64_t columns, C* to_weight,
                                              C* to_bias) const {
    const T* const dy = grad + row * length + begin;
    const T* const from = x + row * length + begin;
    const std::int64_t step = length;
    C shift[count], rstd[count];
    for (std::int64_t r = 0; r < count; ++r) {
      rstd[r] = rstds[row + r];
      shift[r] = means ? -means[row + r] * rstd[r] : C(0);
    }
#pragma GCC ivdep
    for (std::int64_t c = 0; c < columns; ++c) {
      C weight = to_weight[c], bias = to_bias[c];
#pragma GCC unroll 4
      for (std::int64_t r = 0; r < count; ++r) {
        const C g = static_cast<C>(dy[r * step + c]);
        weight = math::fma(g, math::fma(static_cast<C>(from[r * step + c]), rstd[r], shift[r]), weight);
        bias += g;
      }
      to_weight[c] = weight;
      to_bias[c] = bias;
    }
  }

  void operator()(std::int64_t strip) const {
    const std::int64_t begin = strip * width;
    const std::int64_t columns = length - begin < width ? length - begin : width;
    BlockTotals<C, width> weight_total, bias_total;
    C weight_sum[width], bias_sum[width];
    for (std::int64_t first = 0; first < num_rows; first += reduce_block) {
      const std::int64_t end = num_rows - first < reduce_block ? num_rows : first + reduce_block;
      for (std::int64_t c = 0; c < columns; ++c) weight_sum[c] = bias_sum[c] = C(0);
      std::int64_t row = first;
      for (; row + rows_at_once <= end; row += rows_at_once)
        add_rows<rows_at_once>(row, begin, columns, weight_sum, bias_sum);
      for (; row < end; ++row) add_rows<1>(row, begin, columns, weight_sum, bias_sum);
      weight_total.add(weight_sum, columns);
      bias_total.add(bias_sum, columns);
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      if (weight_grad) weight_grad[begin + c] = static_cast<T>(static_cast<C>(weight_total.value(c)));
      if (bias_grad) bias_grad[begin + c] = static_cast<T>(static_cast<C>(bias_total.value(c)));
    }
  }
};

}  // namespace

void norm_backward_weights(Execution on, const NormRows& rows, const View& weight_grad, const View& bias_grad,
                           const View& grad, const View& x, const View& mean, const View& rstd) {
  dispatch_floating(x.dtype, [&]<class T>() {
    using C = ComputeType<T>;
    const std::int64_t num_rows = num_elements(rstd);
    T* const to_weight = data_of<T>(weight_grad);
    T* const to_bias = data_of<T>(bias_grad);
    const T* const dy = data_of<const T>(grad);
    const T* const from = data_of<const T>(x);
    constexpr const char* label = "lockstep::norm_backward_weights";
    if (on.space == Space::host) {
      const std::int64_t strips = (rows.length + NormWeights<T>::width - 1) / NormWeights<T>::width;
      return run_on_host(label, strips,
                         NormWeights<T>{to_weight, to_bias, dy, from, data_of<const C>(mean), data_of<const C>(rstd),
                                        rows.length, num_rows});
    }
    const std::int64_t blocks = (num_rows + reduce_block - 1) / reduce_block;
    const std::size_t bytes = bounded_bytes(bounded_product(2 * blocks, rows.length), sizeof(C));
    auto* const sums = reinterpret_cast<C*>(scratch_on(on, bytes));
    const NormWeightBlocks<T> of_blocks{sums,        dy,      from, data_of<const C>(mean), data_of<const C>(rstd),
                                        rows.length, num_rows};
    run_portable_teams(on, label, bounded_product(blocks, of_blocks.num_strips()), of_blocks);
    run_portable(on, label, rows.length, NormWeightTotals<T>{to_weight, to_bias, sums, rows.length, blocks});
  });
}

}  // namespace lockstep::kernels
