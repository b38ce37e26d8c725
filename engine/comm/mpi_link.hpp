// A link over MPI (internal to engine/comm; without the header of MPI, so that it compiles alone).
//
// A message is one MPI message with the tag of its channel. Data that it announces travels in MPI messages of its own,
// straight from the sender's buffer into the receiver's.
#pragma once

#include <memory>

#include "engine/comm/link.hpp"

namespace lockstep::comm {

// `communicator`: an MPI_Comm of the launchers, in the order of their hosts. It stays the caller's.
std::unique_ptr<Link> make_mpi_link(const void* communicator);

}  // namespace lockstep::comm
