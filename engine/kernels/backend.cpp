#include "engine/kernels/backend.hpp"

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <Kokkos_Core.hpp>
#include <cblas.h>
#include <dnnl.h>

#include "engine/core/text.hpp"
#include "engine/device/protection.hpp"
#include "engine/kernels/blas_internal.hpp"
#include "engine/kernels/kokkos_host_internal.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"

namespace lockstep::kernels {

namespace {

// Per process, not per rank, because the libraries have one state per process.
std::mutex& start_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::atomic<bool> started{false};
std::atomic<bool> kokkos_started{false};

// The instruction set oneDNN generates code for.
const char* instructions_of_onednn() {
  const auto chosen = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto has = [chosen](dnnl_cpu_isa_t isa) { return (chosen & isa) == static_cast<unsigned>(isa); };
  if (has(dnnl_cpu_isa_avx512_core)) return "AVX-512";
  if (has(dnnl_cpu_isa_avx2)) return "AVX2";
  if (has(dnnl_cpu_isa_avx)) return "AVX";
  return has(dnnl_cpu_isa_sse41) ? "SSE4.1" : "any processor";
}

}  // namespace

namespace {

// Under the lock.
void start_kokkos() {
  if (kokkos_started) return;
  // One thread per rank, unless the environment asks for more.
  const bool threads_chosen = std::getenv("OMP_NUM_THREADS") || std::getenv("KOKKOS_NUM_THREADS");
#if KOKKOS_VERSION >= 40000
  Kokkos::InitializationSettings settings;
  if (!threads_chosen) settings.set_num_threads(1);
  settings.set_disable_warnings(true);
  const int device = cuda::current_device();
  if (device >= 0) settings.set_device_id(device);
  Kokkos::initialize(settings);
#else
  Kokkos::InitArguments arguments;
  // Kokkos 3 refuses an argument that differs from the environment.
  if (!threads_chosen) arguments.num_threads = 1;
  if (!std::getenv("KOKKOS_DISABLE_WARNINGS")) arguments.disable_warnings = true;
  Kokkos::initialize(arguments);
#endif
  kokkos_started.store(true, std::memory_order_release);
}

}  // namespace

bool is_initialized() { return started.load(std::memory_order_acquire); }

void initialize() {
  if (is_initialized()) return;
  const std::lock_guard lock(start_mutex());
  if (is_initialized()) return;
  if constexpr (host_needs_kokkos) start_kokkos();
  openblas_set_num_threads(1);
  started.store(true, std::memory_order_release);
}

void initialize_device() {
  if (kokkos_started.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(start_mutex());
  start_kokkos();
}

void finalize() {
  const std::lock_guard lock(start_mutex());
  if (!kokkos_started.exchange(false)) return;
  cuda::forget_instances();
  Kokkos::finalize();
}

std::string backend_name() {
  return str("Kokkos ", KOKKOS_VERSION / 10000, ".", KOKKOS_VERSION / 100 % 100, ".", KOKKOS_VERSION % 100, ", ",
             HostBackend::name());
}

namespace {
struct alignas(16) ScratchUnit {
  std::byte bytes[16];
};
std::size_t units_of(std::size_t bytes) { return std::bit_ceil(bytes / sizeof(ScratchUnit) + 1); }
}  // namespace

std::byte* scratch_of_thread(std::size_t bytes) {
  static thread_local std::vector<ScratchUnit> memory;
  if (memory.size() < units_of(bytes)) memory.resize(units_of(bytes));
  return reinterpret_cast<std::byte*>(memory.data());
}

#ifndef KOKKOS_ENABLE_CUDA
std::byte* cuda::scratch_on(Execution on, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<void*, std::vector<std::vector<ScratchUnit>>> of_streams;
  const std::lock_guard lock(mutex);
  std::vector<std::vector<ScratchUnit>>& memory = of_streams[on.stream];
  if (memory.empty() || memory.back().size() < units_of(bytes)) memory.emplace_back(units_of(bytes));
  return reinterpret_cast<std::byte*>(memory.back().data());
}
#endif

bool loops_go_through_kokkos() {
  return host_needs_kokkos && (!host_is_serial || Kokkos::Profiling::profileLibraryLoaded());
}

void loop_through_kokkos(const char* label, std::int64_t count, const void* functor,
                         void (*call)(const void* functor, std::int64_t index)) {
  const bool open = device::has_rights_of_its_own();
  Kokkos::parallel_for(label, Kokkos::RangePolicy<HostBackend, Kokkos::IndexType<std::int64_t>>(0, count),
                       [=](std::int64_t index) { device::with_rights(open, [=] { call(functor, index); }); });
}

int blas_threads() { return openblas_get_num_threads(); }
std::string blas_name() {
  const dnnl_version_t* const version = dnnl_version();
  return str("oneDNN ", version->major, ".", version->minor, ".", version->patch, " for ", instructions_of_onednn(),
             " (float32), OpenBLAS for ", openblas_get_corename(), " (float64; ", openblas_get_config(), ")");
}

void prepare_products() {
  static const bool prepared = [] {
    if constexpr (host_is_serial) initialize();  // has no threads that a fork would lose
    constexpr std::int64_t n = 2;
    const float a[n * n] = {};
    float c[n * n];
    for (const bool transposed_a : {false, true})
      for (const bool transposed_b : {false, true})
        product(c, n, n, n, n, a, {true, transposed_a, n}, a, {true, transposed_b, n}, false);
    return true;
  }();
  static_cast<void>(prepared);
}

std::vector<std::pair<std::string, std::string>> missing_blas_environment() {
  std::vector<std::pair<std::string, std::string>> missing;
  const char* const threads = std::getenv("OPENBLAS_NUM_THREADS");
  if (threads == nullptr || std::strcmp(threads, "1") != 0) missing.emplace_back("OPENBLAS_NUM_THREADS", "1");
#if defined(__x86_64__)
  const std::string chosen = openblas_get_corename();
  const bool fell_back = chosen == "Prescott" || chosen == "Generic" || chosen == "Core2" || chosen == "Nehalem";
  if (fell_back && std::getenv("OPENBLAS_CORETYPE") == nullptr) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      missing.emplace_back("OPENBLAS_CORETYPE", "SkylakeX");
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      missing.emplace_back("OPENBLAS_CORETYPE", "Haswell");
  }
#endif
  return missing;
}

}  // namespace lockstep::kernels
