// Where the kernels of a launch run. A queue gives it to the bodies of its launches (Pointers::execution), and they
// pass it to the kernels (engine/kernels/view.hpp).
#pragma once

#include <cstdint>

namespace lockstep::device {

// host: the processor, by the bodies that are fastest there.
// portable: the processor, by the bodies that accelerators run; for tests.
// cuda: the Nvidia GPU of the stream.
enum class Space : std::uint8_t { host, portable, cuda };

struct Execution {
  Space space = Space::host;
  std::uint16_t team_size = 0;  // portable: threads of a team; 0: as many as Kokkos recommends
  void* stream = nullptr;       // cuda: the cudaStream_t on which the kernels run; it lives until the process ends

  Execution() = default;
  // A space alone is an execution: kernels::add(Space::host, ...).
  Execution(Space of) : space(of) {}  // NOLINT(google-explicit-constructor)
  Execution(Space of, std::uint16_t threads, void* on = nullptr) : space(of), team_size(threads), stream(on) {}
};

}  // namespace lockstep::device
