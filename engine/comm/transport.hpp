// The data plane: moves the bytes of a collective between the buffers of its members, after the members have agreed.
//
// The elements of a collective form one range, which is cut into chunks. Members claim chunks until none is left, so a
// member that is busy elsewhere does not delay the others. The member that computes a chunk does not affect the bits
// (reduce.hpp). The strings of an exchange go through small staging areas in the control area, piece by piece, with two
// pieces in flight. Between hosts, the ferries move the data, and the members wait.
#pragma once

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// What a transport can do, or what a collective needs. A collective goes over the first transport that can do it.
struct TransportTraits {
  bool exchanges = false;        // moves the byte strings of an exchange
  bool between_hosts = false;    // members may live on different hosts
  bool device_memory = false;    // moves memory that threads of the host cannot access
  bool between_devices = false;  // members may have devices of their own
  bool one_sided = false;        // a member that has arrived need not take part: the others complete without it
  bool ordered_sums = true;      // sums have the order, and so the bits, of reduce.hpp
  bool library_sums = false;     // sums may have the order of a library (SumOrder)
  bool can(const TransportTraits& needs) const {
    return (exchanges || !needs.exchanges) && (between_hosts || !needs.between_hosts) &&
           (device_memory || !needs.device_memory) && (between_devices || !needs.between_devices) &&
           (one_sided || !needs.one_sided) && (ordered_sums || !needs.ordered_sums) &&
           (library_sums || !needs.library_sums);
  }
};

class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual TransportTraits traits() const = 0;
  // Completes the collective of this member, whose slot is open. Promises, which the suite TransportPromises checks for
  // every transport:
  //   - The results are those of reduce.hpp: bit for bit, if the sums are ordered and the collective's order is fixed.
  //   - Every byte is counted in `moved_bytes`, except those of an exchange.
  //   - Every wait is a wait_until(): a mismatch, the end or death of a member, a deadlock or the deadline ends it.
  //   - Any number of collectives may be in progress, and be waited for in any order.
  //   - The traits are true.
  virtual void move(IssuedCollective& issued) const = 0;
  // Opens what later collectives of the group need on the streams `issued.prepared` (comm::prepare()), which stay as
  // they are. All members take part. The waits are those of move().
  virtual void prepare(IssuedCollective& /*issued*/) const {}
  // Bytes of device memory that it needs at `issued.scratch` for such a collective of so many members.
  virtual std::size_t scratch_bytes(const Fingerprint& /*fingerprint*/, SumOrder /*order*/, int /*size*/) const {
    return 0;
  }
};

// Throws UnsupportedError when there is none.
TransportKind choose_transport(const TransportTraits& needs);
const Transport& transport_of(TransportKind kind);

const Transport& shared_memory_transport();
const Transport& staged_transport();         // all members take part in every piece
const Transport& between_hosts_transport();  // the ferries move the data (crossing.hpp)
const Transport& one_device_transport();     // each member's kernels use the memory of all (one_device.hpp)
const Transport& nccl_transport();           // a GPU per rank (nccl.cpp)

// Returns when all members have come to meeting `number` of the collective, from 0 (staged.cpp).
void meet_members(IssuedCollective& issued, std::int64_t number);

// Shared memory: computes the whole collective if it is small enough for the last arriver alone; returns false
// otherwise.
bool run_if_small(Slot& slot, int size);
// Maps the peers' buffers that this process will access, where they are used repeatedly (peer_mappings.hpp).
void map_peer_buffers(const IssuedCollective& issued);
// Bytes of device memory that a collective of the group may need besides its buffers.
std::size_t scratch_bytes_of(const WorldControl& world, const GroupControl& group, const Fingerprint& fingerprint,
                             SumOrder order);

// How the range of elements of a collective is cut into chunks. Exposed for tests.
struct Chunking {
  std::int64_t total = 0;  // elements
  std::int64_t chunk = 1;  // elements per chunk
  std::int64_t num_chunks = 0;
  bool nontemporal = false;  // the collective is large enough for non-temporal stores
};
Chunking chunking_of(const Fingerprint& fingerprint, int size);

}  // namespace lockstep::comm
