#include "engine/device/cuda/streams.hpp"

#include <exception>
#include <map>
#include <mutex>
#include <vector>

#include "engine/core/text.hpp"

namespace lockstep::device::cuda {

namespace {

struct Streams {
  std::mutex mutex;
  std::map<int, std::vector<StreamHandle>> idle;  // by device
  int num_taken = 0;
};
Streams& all() {
  static Streams streams;
  return streams;
}

}  // namespace

StreamHandle take_stream(int device) {
  {
    const std::lock_guard lock(all().mutex);
    std::vector<StreamHandle>& idle = all().idle[device];
    ++all().num_taken;
    if (!idle.empty()) {
      void* const stream = idle.back();
      idle.pop_back();
      return stream;
    }
  }
  return calls().create_stream();
}

void give_stream(const Calls& of, int device, StreamHandle stream) noexcept {
  const std::lock_guard lock(all().mutex);
  try {
    if (&of != &calls()) return;
    all().idle[device].push_back(stream);
    --all().num_taken;
  } catch (const std::exception&) {
    // Without memory for the entry the stream is not used again.
  }
}

void forget_streams() {
  const std::lock_guard lock(all().mutex);
  all().idle.clear();
  all().num_taken = 0;
}

std::string why_no_further_ranks() {
  const std::lock_guard lock(all().mutex);
  if (all().num_taken > 0) return str(all().num_taken, " streams of ranks that have ended are in use");
  try {
    for (const auto& [device, streams] : all().idle) {
      calls().use_device(device);
      static_cast<void>(calls().free_bytes());  // every call reports such an error
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep::device::cuda
