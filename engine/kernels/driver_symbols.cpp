// The three functions of Nvidia's driver that Kokkos calls, found at their first call. Linked in place of libcuda, so
// that the program starts on a machine without a driver.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

template <class Function>
Function found(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned since = 9020;  // the version of CUDA that brought the youngest of them
  if (cudaGetDriverEntryPointByVersion(name, &address, since, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess || address == nullptr) {
    // Kokkos has started, so there is a driver: one that is broken.
    std::fprintf(stderr, "lockstep: the Nvidia driver lacks %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(address);
}

}  // namespace

extern "C" {

CUresult cuCtxGetDevice(CUdevice* device) {
  static const auto call = found<CUresult (*)(CUdevice*)>("cuCtxGetDevice");
  return call(device);
}

CUresult cuCtxPushCurrent(CUcontext context) {  // the header renames it to its second version
  static const auto call = found<CUresult (*)(CUcontext)>("cuCtxPushCurrent");
  return call(context);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  static const auto call = found<CUresult (*)(CUstream, CUcontext*)>("cuStreamGetCtx");
  return call(stream, context);
}
}
