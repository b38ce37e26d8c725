// Memory of a transport, of the size of its call: the caller drops it as soon as it has issued the launch that uses it.
// It is freed in stream order like all memory, so the next launch on the stream gets the same bytes.
//
//   const MemoryPtr scratch = allocate_scratch(stream, 1 << 20);
//   launch(stream, "all_reduce", {..., {scratch.get(), 0, 1 << 20, Mode::write}}, ...);
#pragma once

#include <cstddef>

#include "engine/device/device.hpp"

namespace lockstep::device {

class Stream;

// From the stream's pool. The statistics of the rank and its limit do not count it: both hold on every transport.
// Throws Error if the device is out of memory.
MemoryPtr allocate_scratch(Stream& stream, std::size_t bytes);

// Pinned memory of the host for copies to and from `user`, as of allocate_pinned(); the transport decides how long it
// keeps the block. Not counted either.
MemoryPtr allocate_pinned_scratch(Device user, std::size_t bytes);

}  // namespace lockstep::device
