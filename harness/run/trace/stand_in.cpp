#include "harness/run/trace/stand_in.hpp"

namespace lockstep::run {

namespace {

// Index 0 is the meta device itself. Other indices encode kind and index of the real device.
constexpr int num_kinds = 4;

}  // namespace

device::Device stand_in(device::Device real) {
  if (real.kind == device::Kind::meta) return real;
  return {device::Kind::meta, 1 + static_cast<int>(real.kind) + num_kinds * real.index};
}

bool is_stand_in(device::Device device) { return device.kind == device::Kind::meta && device.index > 0; }

device::Device real_device_of(device::Device device) {
  if (!is_stand_in(device)) return device;
  const int code = device.index - 1;
  return {static_cast<device::Kind>(code % num_kinds), code / num_kinds};
}

device::Device device_named(const Session& session, std::string_view name) {
  const device::Device device = device::device_from_name(name);
  if (session.is_dry_run) return stand_in(device);
  device::require_available(device.kind);
  return device;
}

}  // namespace lockstep::run
