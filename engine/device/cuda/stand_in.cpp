#include "engine/device/cuda/stand_in.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::device::cuda {

namespace {

// One per process. It ends with the process: queues and streams of ranks may outlive every other object.
RecordingCalls& of_process() {
  static RecordingCalls& calls = *[] {
    auto* const made = new RecordingCalls(gpus_of_stand_in(), std::size_t{64} << 30, RecordingCalls::Use::program);
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

int gpus_of_stand_in() {
  const char* const variable = std::getenv(stand_in_variable);
  const std::string_view value = variable == nullptr ? "" : variable;
  if (value.empty()) return 0;
  const std::string_view word = value.substr(0, value.find(':'));
  int gpus = 1;
  bool is_known = word == stand_in_value;
  if (is_known && word.size() < value.size()) {
    const char* const end = value.data() + value.size();
    const auto read = std::from_chars(value.data() + word.size() + 1, end, gpus);
    is_known = read.ec == std::errc() && read.ptr == end && gpus >= 1 && gpus <= max_gpus_of_stand_in;
  }
  if (!is_known)
    throw Error(str(stand_in_variable, "=", value, " is unknown"),
                str("set it to `", stand_in_value, "` (one GPU) or `", stand_in_value, ":N` (N GPUs, 1 to ",
                    int{max_gpus_of_stand_in}, "), or leave it out for a GPU"));
  return gpus;
}

std::string stand_in_setting(int gpus) { return gpus == 1 ? stand_in_value : str(stand_in_value, ":", gpus); }

std::string describe_stand_in(int gpus) {
  return gpus == 1 ? "stand-in of CUDA on the host" : str("stand-in of CUDA and NCCL on the host, for ", gpus, " GPUs");
}

RecordingCalls* stand_in_of_environment() { return gpus_of_stand_in() > 0 ? &of_process() : nullptr; }

RecordingCalls* stand_in() {
  if (Calls* const replaced = replaced_calls()) return dynamic_cast<RecordingCalls*>(replaced);
  return stand_in_of_environment();
}

void launch_on_stand_in(const char* label, StreamHandle stream, std::function<void()> work) {
  require(label).launch(stream, std::move(work));
}
void wait_for_stand_in(const char* label, StreamHandle stream) { require(label).synchronize_stream(stream); }

}  // namespace lockstep::device::cuda
