#include <cstring>
#include <thread>
#include <vector>

#include "engine/core/checked.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/blas_internal.hpp"
#include "engine/kernels/product_check_internal.hpp"

namespace lockstep::kernels {

namespace {

constexpr int n = checked_side;
constexpr std::size_t count = std::size_t{n} * n;

// Each thread has different operands, so that a mix-up between threads changes a result.
template <class T>
struct Operands {
  std::vector<T> a = std::vector<T>(count), b = std::vector<T>(count), expected = std::vector<T>(count);
  std::int64_t wrong = 0;
};

template <class T>
std::vector<Operands<T>> drawn(int num_threads) {
  std::vector<Operands<T>> all(static_cast<std::size_t>(num_threads));
  std::uint32_t word = 12345;
  for (Operands<T>& one : all)
    for (std::vector<T>* operand : {&one.a, &one.b})
      for (T& x : *operand) {
        word = word * 1664525u + 1013904223u;
        x = static_cast<T>(word >> 8) * T(0x1p-23) - T(1);
      }
  return all;
}

template <class T>
bool is_right(const Operands<T>& of) {
  const auto at = [](int row, int column) { return static_cast<std::size_t>(row * n + column); };
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int k = 0; k < n; ++k) sum += static_cast<double>(of.a[at(i, k)]) * static_cast<double>(of.b[at(j, k)]);
      const double difference = sum - static_cast<double>(of.expected[at(i, j)]);
      if (!(difference < 1e-4 && difference > -1e-4)) return false;
    }
  }
  return true;
}

}  // namespace

template <class T>
std::int64_t wrong_products(const SquareProduct<T>& multiply, int num_threads, int products_per_thread) {
  std::vector<Operands<T>> all = drawn<T>(num_threads);
  for (Operands<T>& one : all) {
    multiply(one.expected.data(), one.a.data(), one.b.data());
    if (!is_right(one)) ++one.wrong;
  }
  std::vector<std::thread> threads;
  threads.reserve(all.size());
  for (Operands<T>& one : all) {
    threads.emplace_back([&one, &multiply, products_per_thread] {
      for (int i = 0; i < products_per_thread; ++i) {
        std::vector<T> c(count, T(-1));
        multiply(c.data(), one.a.data(), one.b.data());
        if (std::memcmp(c.data(), one.expected.data(), bounded_product(count, sizeof(T))) != 0) ++one.wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::int64_t wrong = 0;
  for (const Operands<T>& one : all) wrong += one.wrong;
  return wrong;
}
template std::int64_t wrong_products<float>(const SquareProduct<float>&, int, int);
template std::int64_t wrong_products<double>(const SquareProduct<double>&, int, int);

std::int64_t num_wrong_products(int num_threads, int products_per_thread) {
  initialize();
  const auto multiply = []<class T>(T* out, const T* a, const T* b) {
    product(out, n, n, n, n, a, {true, false, n}, b, {true, true, n}, false);
  };
  // float32 uses oneDNN, float64 uses OpenBLAS.
  return wrong_products<float>(multiply, num_threads, products_per_thread) +
         wrong_products<double>(multiply, num_threads, products_per_thread);
}

}  // namespace lockstep::kernels
