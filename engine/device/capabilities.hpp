// What the kinds of devices can do. Code above engine/device asks here instead of comparing kinds.
#pragma once

#include <array>

#include "engine/device/device.hpp"

namespace lockstep::device {

struct Capabilities {
  bool computes = true;            // false: sizes without values; launches are checked and recorded, but do not run
  bool runs_inline = false;        // a launch has run, or been deferred, when launch() returns
  bool host_can_touch = false;     // host code may read and write its memory at any time, not only in launches
  bool runs_on_host = false;       // bodies of launches run on a thread of the host, with addresses that it can use
  bool shared_with_peers = false;  // the ranks of one host have its memory at the same addresses
  bool has_index = false;          // a rank has a device of its own
  // A copy between it and pageable memory of the host (which is not pinned for it) is issued like a launch. Otherwise
  // the host waits for the copy.
  bool copies_pageable_async = false;
};

// In the order of Kind, also of those that this build lacks.
inline constexpr std::array<Capabilities, num_kinds> capabilities = {{
    {.runs_inline = true, .host_can_touch = true, .runs_on_host = true, .shared_with_peers = true},  // cpu
    {.runs_on_host = true, .shared_with_peers = true, .has_index = true},                            // sim
    {.computes = false},                                                                             // meta
    {.has_index = true},                                                                             // cuda
}};
inline constexpr const Capabilities& capabilities_of(Kind kind) { return capabilities[static_cast<std::size_t>(kind)]; }
inline constexpr const Capabilities& capabilities_of(Device device) { return capabilities_of(device.kind); }

// The device whose memory host code may read and write at any time.
inline constexpr Device host_device{Kind::cpu, 0};

inline constexpr bool computes(Device device) { return capabilities_of(device).computes; }
inline constexpr bool is_host(Device device) { return capabilities_of(device).host_can_touch; }
// Memory and work are apart from the host's: inputs move there, and offloaded parameters leave it.
inline constexpr bool is_accelerator(Device device) { return computes(device) && !is_host(device); }
static_assert(is_host(host_device));

}  // namespace lockstep::device
