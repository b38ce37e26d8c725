// The portable bodies, which accelerators run, against the host bodies: bit for bit, for teams of several sizes. The
// other tests of this folder hold the host bodies against formulas.
#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kernels/activations.hpp"
#include "engine/kernels/compare.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/index.hpp"
#include "engine/kernels/optimizer.hpp"
#include "engine/kernels/test_portable.hpp"
#include "engine/kernels/test_views.hpp"
#include "engine/kernels/unfold.hpp"

namespace lockstep::kernels {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

// Values with ties, both zeros, infinities and NaN.
template <class T>
std::vector<T> odd_values(std::size_t count, std::uint32_t seed = 1) {
  std::vector<T> values = mixed_values<T>(count, seed);
  const float odd[] = {0.0f, -0.0f, 1.0f, infinity, -infinity, nan};
  for (std::size_t i = 0; i < count; i += 3 + i % 4) values[i] = static_cast<T>(odd[i % 6]);
  return values;
}

// A shape with an outer dim, a broadcast operand and gaps in the result; longer than a tile of the host.
constexpr std::int64_t rows = 3, columns = 4099, gap = 5;
constexpr std::size_t num_elements_of_case = rows * columns;

template <class T>
void check_binary(void (*kernel)(Execution, const View&, const View&, const View&), const char* name) {
  std::vector<T> a = odd_values<T>(num_elements_of_case), b = odd_values<T>(num_elements_of_case, 7);
  expect_host_bits(name, std::vector<T>(rows * (columns + gap)), [&](Execution on, std::vector<T>& out) {
    kernel(on, view_of(out, {rows, columns}, {columns + gap, 1}), view_of(a, {rows, columns}),
           view_of(b, {rows, columns}, {0, 1}));
  });
  expect_host_bits(name, std::vector<T>(rows * columns),
                   [&](Execution on, std::vector<T>& out) { kernel(on, view_of(out), view_of(a), view_of(b)); });
  expect_host_bits(name, std::vector<T>(rows * columns), [&](Execution on, std::vector<T>& out) {
    kernel(on, view_of(out, {rows, columns}), view_of(a, {rows, columns}, {1, rows}), view_of(b, {rows, columns}));
  });
}
TEST(Portable, BinaryKernelsGiveTheBitsOfTheHost) {
  check_binary<float>(add, "add");
  check_binary<BFloat16>(add, "add");
  check_binary<float>(sub, "sub");
  check_binary<float>(mul, "mul");
  check_binary<Half>(mul, "mul");
  check_binary<float>(div, "div");
  check_binary<float>(maximum, "maximum");
  check_binary<double>(minimum, "minimum");
  check_binary<float>(relu_backward, "relu_backward");
  check_binary<float>(gelu_backward, "gelu_backward");
  check_binary<double>(gelu_backward, "gelu_backward");
  check_binary<float>(tanh_backward, "tanh_backward");
  check_binary<BFloat16>(sigmoid_backward, "sigmoid_backward");
  check_binary<float>(
      [](Execution on, const View& out, const View& a, const View& b) { add_scaled(on, out, a, b, 0.3); },
      "add_scaled");
}

template <class T>
void check_unary(void (*kernel)(Execution, const View&, const View&), const char* name) {
  std::vector<T> a = odd_values<T>(num_elements_of_case);
  expect_host_bits(name, std::vector<T>(rows * columns),
                   [&](Execution on, std::vector<T>& out) { kernel(on, view_of(out), view_of(a)); });
  expect_host_bits(name, std::vector<T>(2 * rows * columns), [&](Execution on, std::vector<T>& out) {
    kernel(on, view_of(out, {rows, columns}, {2 * columns, 2}), view_of(a, {rows, columns}, {1, rows}));
  });
}
template <class T>
void check_numbers() {
  for (const auto number : {add_number, mul_number, div_number, rsub_number, rdiv_number, pow_number}) {
    std::vector<T> a = odd_values<T>(777);
    for (const double by : {2.0, 3.0, -1.0, 0.5, 1.7, -0.3, 5.0})
      expect_host_bits("number", std::vector<T>(777),
                       [&](Execution on, std::vector<T>& out) { number(on, view_of(out), view_of(a), by); });
  }
}
TEST(Portable, UnaryKernelsGiveTheBitsOfTheHost) {
  check_unary<float>(neg, "neg");
  check_unary<float>(abs, "abs");
  check_unary<float>(sign, "sign");
  check_unary<float>(relu, "relu");
  check_unary<float>(sqrt, "sqrt");
  check_unary<float>(rsqrt, "rsqrt");
  check_unary<float>(exp, "exp");
  check_unary<double>(exp, "exp");
  check_unary<float>(log, "log");
  check_unary<double>(log, "log");
  check_unary<BFloat16>(log, "log");
  check_unary<float>(gelu, "gelu");
  check_unary<double>(gelu, "gelu");
  check_unary<float>(tanh, "tanh");
  check_unary<double>(tanh, "tanh");
  check_unary<Half>(tanh, "tanh");
  check_unary<double>(sigmoid, "sigmoid");
  check_unary<float>(erf, "erf");
  check_unary<double>(erf, "erf");
  check_numbers<float>();
  check_numbers<double>();
  std::vector<std::int64_t> integers = {3, -2, 0, 7};
  expect_host_bits("pow", std::vector<std::int64_t>(4), [&](Execution on, std::vector<std::int64_t>& out) {
    pow_number(on, view_of(out), view_of(integers), 5.0);
  });
}

TEST(Portable, KeepsAndSelectsTheElementsOfTheHost) {
  std::vector<float> a = odd_values<float>(num_elements_of_case), b = odd_values<float>(num_elements_of_case, 3);
  Bools keep(num_elements_of_case);
  for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = i % 3 == 0;
  for (const Dims& strides : {Dims{columns, 1}, Dims{1, rows}}) {
    const View yes{keep.data(), DType::boolean, {rows, columns}, strides};
    const View x = view_of(a, {rows, columns}), y = view_of(b, {rows, columns}, {0, 1});
    expect_host_bits("keep_scaled", std::vector<float>(rows * columns), [&](Execution on, std::vector<float>& out) {
      keep_scaled(on, view_of(out, {rows, columns}), x, yes, 1.3);
    });
    expect_host_bits("where", std::vector<float>(rows * columns), [&](Execution on, std::vector<float>& out) {
      where(on, view_of(out, {rows, columns}), yes, x, y);
    });
    for (const Comparison by :
         {Comparison::eq, Comparison::ne, Comparison::lt, Comparison::le, Comparison::gt, Comparison::ge})
      expect_host_bits("compare", std::vector<std::uint8_t>(rows * columns),
                       [&](Execution on, std::vector<std::uint8_t>& out) {
                         compare(on, {out.data(), DType::boolean, {rows, columns}, strides}, x, y, by);
                       });
  }
}

template <class T>
void check_extremes(bool with_ties, bool with_nan) {
  for (const std::int64_t length : {1, 5, 128, 129, 1000, 3200}) {
    std::vector<T> a = mixed_values<T>(static_cast<std::size_t>(4 * length));
    if (with_ties)
      for (std::size_t i = 0; i < a.size(); i += 5) a[i] = static_cast<T>(i % 2 == 0 ? 900.0f : -900.0f);
    else  // at the start, at the end and in between
      for (std::int64_t row = 0; length > 1 && row < 4; ++row) {
        T* const at = a.data() + row * length + (length - 2) * row / 3;
        at[0] = static_cast<T>(950.0f);
        at[1] = static_cast<T>(-950.0f);
      }
    if (with_nan)
      for (std::size_t i = 2; i < a.size(); i += 11) a[i] = static_cast<T>(nan);
    for (const bool largest : {true, false}) {
      expect_host_bits("extremes", std::vector<std::int64_t>(4), [&](Execution on, std::vector<std::int64_t>& at) {
        extremes(on, {}, view_of(at), view_of(a, {4, length}), largest);
      });
      expect_host_bits("extremes", std::vector<T>(4), [&](Execution on, std::vector<T>& values) {
        extremes(on, view_of(values), {}, view_of(a, {4, length}), largest);
      });
    }
  }
}
TEST(Portable, FindsTheExtremesOfTheHost) {
  check_extremes<float>(false, false);
  check_extremes<float>(true, false);
  check_extremes<float>(false, true);
  check_extremes<Half>(true, true);
  check_extremes<std::int32_t>(false, false);
}

template <class T>
void check_copies() {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{8, 8}, {31, 33}, {32, 64}, {70, 9}, {7, 100}}) {
    std::vector<T> from(static_cast<std::size_t>(3 * m * n));
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(static_cast<float>(1 + i % 101));
    const Dims sizes = {3, m, n};
    for (const Dims& strides : {Dims{m * n, n, 1}, Dims{m * n, 1, m}, Dims{0, 0, 0}, Dims{0, n, 1}, Dims{n, 0, 1}})
      expect_host_bits("copy", std::vector<T>(static_cast<std::size_t>(3 * m * (n + 2))),
                       [&, m = m, n = n](Execution on, std::vector<T>& out) {
                         copy(on, view_of(out, sizes, {m * (n + 2), n + 2, 1}), view_of(from, sizes, strides));
                       });
  }
}
TEST(Portable, CopiesTheBitsOfTheHost) {
  check_copies<std::int64_t>();
  check_copies<float>();
  check_copies<BFloat16>();
  std::vector<float> large = mixed_values<float>(300'000);
  expect_host_bits("copy", std::vector<float>(300'000),
                   [&](Execution on, std::vector<float>& out) { copy(on, view_of(out), view_of(large)); });
  for (int i = 0; i < num_dtypes; ++i) {
    for (int j = 0; j < num_dtypes; ++j) {
      std::vector<double> source = {0.0, 1.0, -2.0, 3.75, 100.0}, from(5);
      const View middle{from.data(), static_cast<DType>(i), {5}, {1}};
      copy(Space::host, middle, view_of(source));
      expect_host_bits("cast", std::vector<double>(5), [&](Execution on, std::vector<double>& out) {
        copy(on, {out.data(), static_cast<DType>(j), {5}, {1}}, middle);
      });
    }
  }
  expect_host_bits("arange", std::vector<float>(100),
                   [&](Execution on, std::vector<float>& out) { arange(on, view_of(out, {33}, {3}, 1), 0.1, -0.3); });
  expect_host_bits("fill", std::vector<float>(100), [&](Execution on, std::vector<float>& out) {
    fill(on, view_of(out, {3, 7}, {30, 2}, 1), 0.1);
  });
}

TEST(Portable, MovesTheSlicesOfTheHost) {
  std::vector<float> table = mixed_values<float>(4 * 10 * 6), added = mixed_values<float>(4 * 7 * 6, 3);
  std::vector<std::int64_t> at = {3, 0, -1, 9, 3, 3, 1};
  expect_host_bits("index_select", std::vector<float>(4 * 7 * 6), [&](Execution on, std::vector<float>& out) {
    index_select(on, view_of(out, {4, 7, 6}), view_of(table, {4, 10, 6}), 1, view_of(at), Missing::zeros);
  });
  expect_host_bits("index_add", table, [&](Execution on, std::vector<float>& to) {
    index_add(on, view_of(to, {4, 10, 6}), 1, view_of(at), view_of(added, {4, 7, 6}), Missing::zeros);
  });
  std::vector<std::int64_t> wanted = {0, 5, 99, 12, 7, 13, 3};
  expect_host_bits("positions_in", std::vector<std::int64_t>(7), [&](Execution on, std::vector<std::int64_t>& out) {
    positions_in(on, view_of(out), view_of(wanted), 20, {{3, 4}, {12, 2}}, "embedding", 99);
  });
  std::vector<std::int64_t> positions(7);
  positions_in(Space::portable, view_of(positions), view_of(wanted), 20, {{3, 4}, {12, 2}}, "embedding", 99);
  EXPECT_EQ(positions, (std::vector<std::int64_t>{-1, 2, -2, 4, -1, 5, 0}));  // by hand
}

TEST(Portable, RefusesTheIndicesThatTheHostRefuses) {
  std::vector<float> table(30), out(9);
  std::vector<std::int64_t> at = {2, 10, -7};
  for (const Execution on : {Execution(Space::host), Execution(Space::portable)}) {
    try {
      index_select(on, view_of(out, {3, 3}), view_of(table, {10, 3}), 0, view_of(at));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("index 10 at position 1 is out of range for a dim of size 10"));
    }
  }
}

TEST(Portable, UnfoldsAndFoldsTheBitsOfTheHost) {
  const Windows windows{2, 3, 9, 7, {3, 2}, {2, 1}, {1, 1}};
  const std::int64_t lines = 2 * windows.out_height() * windows.out_width();
  std::vector<float> images = mixed_values<float>(2 * 3 * 9 * 7);
  std::vector<float> matrix = mixed_values<float>(static_cast<std::size_t>(lines * 18), 5);
  expect_host_bits("unfold", std::vector<float>(matrix.size()), [&](Execution on, std::vector<float>& out) {
    unfold(on, windows, view_of(out, {lines, 18}), view_of(images, {2, 3, 9, 7}));
  });
  expect_host_bits("fold", std::vector<float>(images.size()), [&](Execution on, std::vector<float>& out) {
    fold(on, windows, view_of(out, {2, 3, 9, 7}), view_of(matrix, {lines, 18}));
  });
}

// The gradient begins at this element of its memory: packs are aligned, or are not.
template <class T>
void check_optimizers(std::int64_t begin_of_grad) {
  constexpr std::size_t count = 4096 + 77, pitch = 4096 + 80;  // packs divide the pitch
  std::vector<T> start = mixed_values<T>(4 * pitch), values = mixed_values<T>(pitch, 3);
  const auto part = [](std::vector<T>& all, std::size_t number) {
    return view_of(all, {static_cast<std::int64_t>(count)}, {1}, static_cast<std::int64_t>(number * pitch));
  };
  const View grad = view_of(values, {static_cast<std::int64_t>(count)}, {1}, begin_of_grad);
  for (std::size_t i = 0; i < count; ++i)  // the second moment is not negative
    start[2 * pitch + i] = static_cast<T>(std::fabs(static_cast<ComputeType<T>>(start[2 * pitch + i])));
  for (const double decay : {0.0, 0.1}) {
    for (const bool decoupled : {false, true})
      expect_host_bits("adam", start, [&](Execution on, std::vector<T>& state) {
        const AdamItem item{part(state, 0), grad, part(state, 1), part(state, 2), 3};
        adam(on, {&item, 1}, {.lr = 0.01, .weight_decay = decay, .decoupled = decoupled});
      });
    for (const double momentum : {0.0, 0.9})
      for (const bool first : {false, true})
        expect_host_bits("sgd", start, [&](Execution on, std::vector<T>& state) {
          const SgdItem item{part(state, 0), grad, part(state, 1), first};
          sgd(on, {&item, 1}, {.lr = 0.1, .momentum = momentum, .weight_decay = decay});
        });
  }
}
TEST(Portable, OptimizersGiveTheBitsOfTheHost) {
  for (const std::int64_t begin : {0, 1}) {
    check_optimizers<float>(begin);
    check_optimizers<double>(begin);
    check_optimizers<BFloat16>(begin);
  }
}

}  // namespace
}  // namespace lockstep::kernels
