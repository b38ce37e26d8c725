// The only source of this folder that includes headers of CUDA. Functions of the driver are looked up at their first
// use, so that the program starts on a machine without a driver.
#include <cstring>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "engine/core/resources.hpp"
#include "engine/device/cuda/calls.hpp"
#include "engine/device/cuda/driver_errors.hpp"
#include "engine/device/cuda/stand_in.hpp"

namespace lockstep::device::cuda {

namespace {

static_assert(sizeof(MemoryHandle) == sizeof(cudaIpcMemHandle_t));

ResourceError refused(const char* call, cudaError_t error) {
  static_cast<void>(cudaGetLastError());  // an error that is not sticky does not reach later calls
  return ResourceError(str(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)),
                       error == cudaErrorMemoryAllocation ? "use fewer ranks per GPU, or a GPU with more memory"
                                                          : "see the documentation of CUDA for this error");
}

void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) throw refused(call, error);
}

void check_driver(const char* call, CUresult error) {
  if (error != CUDA_SUCCESS)
    throw ResourceError(str(call, ": error ", static_cast<int>(error), " of the Nvidia driver"),
                        "see the documentation of CUDA for this error");
}

// The status of what the stream has not reached is no error.
bool is_done(const char* call, cudaError_t error) {
  if (error == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(call, error);
  return true;
}

// 0 without a driver. cudaDriverGetVersion() would start CUDA, and then no process that is forked later could.
int version_of_driver() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return 0;
  const auto get_version = reinterpret_cast<CUresult (*)(int*)>(::dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  if (get_version != nullptr) check_driver("cuDriverGetVersion", get_version(&version));
  return version;
}

int version_of_runtime() {
  int version = 0;
  check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&version));
  return version;
}

template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  check(name, cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || found == nullptr)
    throw ResourceError(str(name, ": the Nvidia driver lacks this function"), "install a newer driver");
  return reinterpret_cast<Function>(found);
}

cudaStream_t stream_of(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(EventHandle event) { return static_cast<cudaEvent_t>(event); }
CUdeviceptr address_of(const std::uint64_t* word) { return reinterpret_cast<CUdeviceptr>(word); }

class Driver final : public Calls {
 public:
  // ---- devices
  void require_driver() override {
    if (gpus_of_stand_in() > 0) throw no_stand_in();
    require_versions(version_of_driver(), version_of_runtime());
  }
  int driver_version() override { return version_of_driver(); }
  int num_devices() override {
    require_driver();
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) throw unusable_driver(version_of_driver(), version_of_runtime());
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) throw no_device();
    check("cudaGetDeviceCount", error);
    return count;
  }
  DeviceProperties properties_of(int device) override {
    cudaDeviceProp found{};
    check("cudaGetDeviceProperties", cudaGetDeviceProperties(&found, device));
    char id[32];
    check("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(id, sizeof id, device));
    return {found.name, id, found.major, found.minor, found.totalGlobalMem};
  }
  // Without the flag, a thread that waits for the device spins where there are fewer contexts than cores.
  void use_device(int device) override {
    check("cudaSetDevice", cudaSetDevice(device));
    check("cudaSetDeviceFlags", cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  }
  std::size_t free_bytes() override {
    std::size_t free = 0, total = 0;
    check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
    return free;
  }

  // ---- streams and events
  StreamHandle create_stream() override {
    cudaStream_t stream = nullptr;
    check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void destroy_stream(StreamHandle stream) noexcept override {
    static_cast<void>(cudaStreamDestroy(stream_of(stream)));
  }
  void synchronize_stream(StreamHandle stream) override {
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream_of(stream)));
  }
  EventHandle create_event(bool timed) override {
    cudaEvent_t event = nullptr;
    const unsigned flags = cudaEventBlockingSync | (timed ? 0U : static_cast<unsigned>(cudaEventDisableTiming));
    check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, flags));
    return event;
  }
  void destroy_event(EventHandle event) noexcept override { static_cast<void>(cudaEventDestroy(event_of(event))); }
  void record_event(EventHandle event, StreamHandle stream) override {
    check("cudaEventRecord", cudaEventRecord(event_of(event), stream_of(stream)));
  }
  bool event_done(EventHandle event) override { return is_done("cudaEventQuery", cudaEventQuery(event_of(event))); }
  void synchronize_event(EventHandle event) override {
    check("cudaEventSynchronize", cudaEventSynchronize(event_of(event)));
  }
  void wait_event(StreamHandle stream, EventHandle event) override {
    check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }
  float milliseconds_between(EventHandle begin, EventHandle end) override {
    float milliseconds = 0;
    check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, event_of(begin), event_of(end)));
    return milliseconds;
  }
  void wait_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) override {
    using Function = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    static const auto wait = driver_function<Function>("cuStreamWaitValue64", 12000);
    check_driver("cuStreamWaitValue64", wait(stream_of(stream), address_of(word), value, CU_STREAM_WAIT_VALUE_GEQ));
  }
  void write_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) override {
    using Function = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    static const auto write = driver_function<Function>("cuStreamWriteValue64", 12000);
    check_driver("cuStreamWriteValue64",
                 write(stream_of(stream), address_of(word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  }

  // ---- memory
  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    check(str("cudaMalloc of ", bytes, " bytes").c_str(), cudaMalloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) noexcept override { static_cast<void>(cudaFree(memory)); }
  void pin(void* pages, std::size_t bytes) override {
    check(str("cudaHostRegister of ", bytes, " bytes").c_str(),
          cudaHostRegister(pages, bytes, cudaHostRegisterPortable));
  }
  void unpin(void* pages) noexcept override { static_cast<void>(cudaHostUnregister(pages)); }
  void copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
  }
  void set_bytes(void* to, int byte, std::size_t bytes, StreamHandle stream) override {
    check("cudaMemsetAsync", cudaMemsetAsync(to, byte, bytes, stream_of(stream)));
  }
  MemoryHandle handle_of(void* allocation) override {
    cudaIpcMemHandle_t handle{};
    check("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, allocation));
    MemoryHandle published{};
    std::memcpy(published.bytes, &handle, sizeof handle);
    return published;
  }
  void* open_handle(const MemoryHandle& published) override {
    cudaIpcMemHandle_t handle{};
    std::memcpy(&handle, published.bytes, sizeof handle);
    void* memory = nullptr;
    check("cudaIpcOpenMemHandle", cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
    return memory;
  }
  void close_handle(void* memory) noexcept override { static_cast<void>(cudaIpcCloseMemHandle(memory)); }
};

}  // namespace

Calls& driver_calls() {
  static Driver driver;
  return driver;
}

}  // namespace lockstep::device::cuda
