#include "engine/device/cuda/streams.hpp"

#include <exception>
#include <map>
#include <mutex>
#include <vector>

namespace lockstep::device::cuda {

namespace {

struct Idle {
  std::mutex mutex;
  std::map<int, std::vector<StreamHandle>> by_device;
};
Idle& idle() {
  static Idle streams;
  return streams;
}

}  // namespace

StreamHandle take_stream(int device) {
  {
    const std::lock_guard lock(idle().mutex);
    std::vector<StreamHandle>& of_device = idle().by_device[device];
    if (!of_device.empty()) {
      void* const stream = of_device.back();
      of_device.pop_back();
      return stream;
    }
  }
  return calls().create_stream();
}

void give_stream(const Calls& of, int device, StreamHandle stream) noexcept {
  const std::lock_guard lock(idle().mutex);
  try {
    if (&of == &calls()) idle().by_device[device].push_back(stream);
  } catch (const std::exception&) {
    // Without memory for the entry the stream is not used again.
  }
}

void forget_streams() {
  const std::lock_guard lock(idle().mutex);
  idle().by_device.clear();
}

}  // namespace lockstep::device::cuda
