#include "engine/kernels/backend.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <Kokkos_Core.hpp>
#include <cblas.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/text.hpp"
#include "engine/kernels/elementwise.hpp"
#include "engine/kernels/gemm.hpp"
#include "engine/kernels/index.hpp"
#include "engine/kernels/optimizer.hpp"
#include "engine/kernels/reduce.hpp"
#include "engine/kernels/test_views.hpp"

namespace lockstep::kernels {
namespace {

TEST(Backend, StartsOnceFromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([] { initialize(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_initialized());
#ifndef KOKKOS_ENABLE_CUDA  // there the first kernel on a GPU starts it
  EXPECT_TRUE(Kokkos::is_initialized());
#endif
  initialize();
  EXPECT_TRUE(is_initialized());
  EXPECT_THAT(backend_name(), testing::HasSubstr("Kokkos "));
}

TEST(Backend, UsesOneBlasThread) {
  initialize();
  EXPECT_EQ(blas_threads(), 1);
  EXPECT_THAT(blas_name(), testing::HasSubstr("OpenBLAS"));
}

TEST(Backend, NamesMissingEnvironmentVariables) {
  const auto lacks = [](const std::string& name) {
    for (const auto& [missing, value] : missing_blas_environment())
      if (missing == name) return true;
    return false;
  };
  const char* const before = std::getenv("OPENBLAS_NUM_THREADS");
  const std::string kept = before ? before : "";
  setenv("OPENBLAS_NUM_THREADS", "4", 1);
  EXPECT_TRUE(lacks("OPENBLAS_NUM_THREADS"));
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  EXPECT_FALSE(lacks("OPENBLAS_NUM_THREADS"));
  if (!before) unsetenv("OPENBLAS_NUM_THREADS");
  setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  EXPECT_FALSE(lacks("OPENBLAS_CORETYPE"));
}

#if defined(__x86_64__)
// OpenBLAS reads OPENBLAS_CORETYPE when the program starts, and then has code of that processor, as it has by itself on
// one that it does not know.
TEST(BackendWithOlderCode, NamesCodeForTheProcessor) {
  const char* const variable = std::getenv("OPENBLAS_CORETYPE");
  const std::string core = variable == nullptr ? "" : variable;
  const std::string name = blas_name();
  if ((core != "Prescott" && core != "Core2" && core != "Nehalem") || name.find("OpenBLAS for " + core) == name.npos)
    GTEST_SKIP() << "OpenBLAS has chosen its code";
  unsetenv("OPENBLAS_CORETYPE");
  std::string proposed;
  for (const auto& [missing, value] : missing_blas_environment())
    if (missing == "OPENBLAS_CORETYPE") proposed = value;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  EXPECT_EQ(proposed, has_avx512 ? "SkylakeX" : has_avx2 ? "Haswell" : "");
}

TEST(Backend, NamesCodeForTheProcessorWhereTheBlasDoesNotKnowIt) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const char* const core : {"Prescott", "Core2", "Nehalem"}) {
    const std::string command =
        str("OPENBLAS_CORETYPE=", core, " '", program, "' --gtest_filter='BackendWithOlderCode.*' --gtest_brief=1");
    EXPECT_EQ(std::system(command.c_str()), 0) << core;
  }
}
#endif

#ifndef KOKKOS_ENABLE_CUDA
TEST(Backend, RejectsAnUnavailableBackend) {
  std::vector<float> a(4, 1.0f), out(4), square(4);
  EXPECT_THROW(add(Space::cuda, view_of(out), view_of(a), view_of(a)), UnsupportedError);
  EXPECT_THROW(sum(Space::cuda, view_of(out, Dims{}), view_of(a), 1), UnsupportedError);
  EXPECT_THROW(matmul(Space::cuda, view_of(square, {2, 2}), view_of(a, {2, 2}), view_of(a, {2, 2})), UnsupportedError);
}
#endif

// With Cuda the host's loops do not go through Kokkos.
#ifndef KOKKOS_ENABLE_CUDA
std::mutex label_mutex;
std::set<std::string> labels;

// The prefix distinguishes these kernels from others in a profile.
TEST(Backend, PrefixesAllLabels) {
  initialize();
  Kokkos::Tools::Experimental::set_begin_parallel_for_callback([](const char* name, std::uint32_t, std::uint64_t*) {
    const std::lock_guard lock(label_mutex);
    labels.insert(name);
  });
  const Space host = Space::host;
  std::vector<float> a(64, 1.0f), b(64, 2.0f), out(64), one(1);
  std::vector<double> wide(64);
  std::vector<std::int64_t> index = {1, 0};
  bool finite = false;
  const View x = view_of(a), y = view_of(b), to = view_of(out), scalar = view_of(one, Dims{});
  for (const auto binary : {add, sub, mul, div, maximum, minimum, relu_backward}) binary(host, to, x, y);
  add_scaled(host, to, x, y, 2.0);
  for (const auto number : {add_number, mul_number, div_number, rsub_number, rdiv_number, pow_number})
    number(host, to, x, 2.0);
  for (const auto unary : {neg, abs, sign, relu, sqrt, rsqrt, exp, log}) unary(host, to, x);
  copy(host, view_of(wide), x);
  copy(host, view_of(out, {8, 8}), view_of(a, {8, 8}, {1, 8}));
  copy(host, view_of(out, {4, 4}, {8, 2}), view_of(a, {4, 4}));
  fill(host, to, 1.0);
  sum(host, scalar, x, 1);
  sum_squared_difference(host, scalar, x, y, 64.0);
  all_finite(host, {&finite, DType::boolean, {}, {}}, x);
  index_select(host, view_of(out, {2, 8}), view_of(a, {8, 8}), 0, view_of(index));
  index_add(host, view_of(out, {8, 8}), 0, view_of(index), view_of(a, {2, 8}));
  const SgdItem sgd_item{to, x, y, false};
  sgd(host, {&sgd_item, 1}, {});
  std::vector<float> m(64), v(64);
  const AdamItem adam_item{to, x, view_of(m), view_of(v), 1};
  adam(host, {&adam_item, 1}, {});
  sum(Space::portable, scalar, x, 1);
  matmul(Space::portable, view_of(out, {8, 8}), view_of(a, {8, 8}), view_of(b, {8, 8}));
  Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
  EXPECT_THAT(labels, testing::Contains("lockstep::matmul"));
  EXPECT_GE(labels.size(), 30u);
  EXPECT_TRUE(finite);
  EXPECT_THAT(labels, testing::Each(testing::StartsWith("lockstep::")));
}
#endif

}  // namespace
}  // namespace lockstep::kernels
