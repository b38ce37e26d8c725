// A launch that gives the bytes of a block to host code, on every device. What observes a rank uses it instead of
// read_to_host(): the order check sees a launch that reads, and no wait of the host.
//
//   launch_read(current_stream(tensor.device()), "hash", read(tensor), [](const std::byte* bytes) { ... });
#pragma once

#include <cstddef>
#include <functional>

#include "engine/device/stream.hpp"

namespace lockstep::device {

// `use` runs on the stream, like the body of a launch, and gets the address of the first byte of the range, or of a
// copy on the host that lasts as long as the call. It must not block. Throws what launch() throws.
void launch_read(Stream& stream, const char* name, const Access& range, std::function<void(const std::byte*)> use);

}  // namespace lockstep::device
