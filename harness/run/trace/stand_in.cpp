#include "harness/run/trace/stand_in.hpp"

#include "engine/device/capabilities.hpp"

namespace lockstep::run {

// Index 0 is the meta device itself. Other indices encode kind and index of the real device.

device::Device stand_in(device::Device real) {
  if (!device::computes(real)) return real;
  return {device::Kind::meta, 1 + static_cast<int>(real.kind) + device::num_kinds * real.index};
}

bool is_stand_in(device::Device device) { return !device::computes(device) && device.index > 0; }

device::Device real_device_of(device::Device device) {
  if (!is_stand_in(device)) return device;
  const int code = device.index - 1;
  return {static_cast<device::Kind>(code % device::num_kinds), code / device::num_kinds};
}

device::Device device_named(const Session& session, std::string_view name) {
  const device::Device device = device::device_from_name(name);
  if (session.is_dry_run) return stand_in(device);
  device::require_available(device.kind);
  return device;
}

}  // namespace lockstep::run
