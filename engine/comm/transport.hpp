// The data plane: moves the bytes of a collective between the buffers of its members, after the members have agreed.
//
// The elements of a collective form one range, which is cut into chunks. Members claim chunks until none is left, so a
// member that is busy elsewhere does not delay the others. The member that computes a chunk does not affect the bits
// (reduce.hpp). When peers cannot access some buffer (ranks are processes and the buffer is outside the arenas), the
// whole collective is staged: its data goes through small staging areas in the control area, piece by piece, with two
// pieces in flight.
#pragma once

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// Computes the whole collective if it is small enough for the last arriver alone; returns false otherwise.
bool run_if_small(Slot& slot, int size);
// Claims and computes chunks until none is left. True for the member that finished the last chunk.
bool run_chunks(Slot& slot, int size);
// Maps the peers' buffers that this process will access, where they are used repeatedly (peer_mappings.hpp).
void map_peer_buffers(const IssuedCollective& issued);
// The staged form. All members take part in every piece.
void run_staged(IssuedCollective& issued);
// Peers cannot access a buffer of this member.
bool has_unreachable_buffer(const IssuedCollective& issued);

// How the range of elements of a collective is cut into chunks. Exposed for tests.
struct Chunking {
  std::int64_t total = 0;  // elements
  std::int64_t chunk = 1;  // elements per chunk
  std::int64_t num_chunks = 0;
  bool nontemporal = false;  // the collective is large enough for non-temporal stores
};
Chunking chunking_of(const Fingerprint& fingerprint, int size);

}  // namespace lockstep::comm
