#include "engine/device/cuda/driver_errors.hpp"

namespace lockstep::device::cuda {

namespace {
constexpr int per_major = 1000;
std::string text_of_version(int version) { return str(version / per_major, ".", version % per_major / 10); }
}  // namespace

UnsupportedError not_built() {
  return UnsupportedError("this build has no cuda device", "use sim, or build it with ci/build.sh cuda");
}

UnsupportedError no_stand_in() {
  return UnsupportedError("cuda: LOCKSTEP_CUDA asks for the stand-in of CUDA, which builds with CUDA do not have",
                          "leave the variable out, or use a build without CUDA");
}

UnsupportedError unusable_driver(int driver, int runtime) {
  if (driver == 0)
    return UnsupportedError("cuda: this machine has no Nvidia driver", "install the driver, or use --device sim");
  return UnsupportedError(str("cuda: the Nvidia driver supports CUDA ", text_of_version(driver),
                              ", and this build needs ", text_of_version(runtime)),
                          "install a newer driver, or build with an older CUDA toolkit");
}

UnsupportedError no_device() {
  return UnsupportedError("cuda: this machine has an Nvidia driver and shows no GPU",
                          "compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES, or use --device sim");
}

void require_versions(int driver, int runtime) {
  if (driver / per_major < runtime / per_major) throw unusable_driver(driver, runtime);
}

}  // namespace lockstep::device::cuda
