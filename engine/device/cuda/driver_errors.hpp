// The words for a machine on which CUDA cannot be used. Versions are CUDA's numbers: 13000 is 13.0.
#pragma once

#include "engine/core/error.hpp"

namespace lockstep::device::cuda {

UnsupportedError not_built();
UnsupportedError no_stand_in();  // in a build with CUDA
// `driver` is the newest version of CUDA that the driver supports, 0 where there is no driver.
UnsupportedError unusable_driver(int driver, int runtime);
UnsupportedError no_device();
// Throws unusable_driver() unless a runtime of this version works with the driver: it has the same major version, or a
// newer one.
void require_versions(int driver, int runtime);

}  // namespace lockstep::device::cuda
