// The data plane: moves the bytes of a collective whose members agree, straight between their buffers.
//
// The work of a collective is a range of elements cut into chunks, an equal share of them for each member; who is done
// with its own claims what is left of the others', so a member that computes elsewhere is not waited for. Shares are
// the same each time: a process has the pages of its own at hand. Who computes a chunk changes no bits (reduce.hpp). A
// buffer that peers cannot reach (process ranks, outside the arenas) makes the whole collective a staged one: all go
// through small staging areas in the control area, piece by piece, two pieces in flight.
#pragma once

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// Computes everything now when it is small enough for the last arriver to do alone; false otherwise.
bool run_at_once(Slot& slot, int size);
// Claims and computes chunks until none is left; true for the one who finished the last.
bool run_chunks(Slot& slot, int size);
// Has this process map what it will touch of its peers' buffers, where they come again (reach.hpp).
void reach_buffers(const Issued& issued);
// The staged form; all members take part in every piece.
void run_staged(Issued& issued);
// A buffer of this member is out of its peers' reach.
bool lies_outside(const Issued& issued);

// How the range of elements of a collective is cut; exposed for tests.
struct Cut {
  std::int64_t total = 0;  // elements
  std::int64_t chunk = 1;  // elements
  std::int64_t num_chunks = 0;
  bool streams = false;  // large enough for stores past the caches
};
Cut cut_of(const Fingerprint& fingerprint, int size);

}  // namespace lockstep::comm
