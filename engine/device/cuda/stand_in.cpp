#include "engine/device/cuda/stand_in.hpp"

#include <cstdlib>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::device::cuda {

namespace {

// One per process. It ends with the process: queues and streams of ranks may outlive every other object.
RecordingCalls& of_process() {
  static RecordingCalls& calls = *[] {
    auto* const made = new RecordingCalls(1, std::size_t{64} << 30, RecordingCalls::Use::program);
    made->be_lazy();
    return made;
  }();
  return calls;
}

RecordingCalls& require(const char* label) {
  RecordingCalls* const calls = stand_in();
  if (calls == nullptr)
    throw UnsupportedError(str(label, ": this build has no Cuda backend"), "build against a Kokkos with Cuda");
  return *calls;
}

}  // namespace

bool stand_in_is_asked_for() {
  const char* const value = std::getenv(stand_in_variable);
  if (value == nullptr || *value == '\0') return false;
  if (std::string(value) != stand_in_value)
    throw Error(str(stand_in_variable, "=", value, " is unknown"),
                str("set it to `", stand_in_value, "`, or leave it out for a GPU"));
  return true;
}

RecordingCalls* stand_in() {
  if (Calls* const replaced = replaced_calls()) return dynamic_cast<RecordingCalls*>(replaced);
  return stand_in_is_asked_for() ? &of_process() : nullptr;
}

void launch_on_stand_in(const char* label, StreamHandle stream, std::function<void()> work) {
  require(label).launch(stream, std::move(work));
}
void wait_for_stand_in(const char* label, StreamHandle stream) { require(label).synchronize_stream(stream); }

}  // namespace lockstep::device::cuda
