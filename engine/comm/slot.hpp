// The life of a slot (control.hpp): members arrive, the last one opens it, the data moves, members leave, the last one
// frees it for the next generation. A ferry counts for the members that live on other hosts.
#pragma once

#include "engine/comm/control.hpp"

namespace lockstep::comm {

// Counts a member that has written its entry. The last one compares all entries. It then opens the slot (and computes a
// small collective itself) or marks a mismatch. If the group is poisoned, it refuses the slot.
void count_arrival(WorldControl& world, GroupControl& group, std::uint64_t sequence);
// No data moves: each member that waits for arrivals throws the poison, which is set.
void refuse(Slot& slot);
// Counts members that need the slot no longer.
void count_leavers(Slot& slot, int size, int count);
// All plain fields agree. The digests may differ.
bool fields_match(const Fingerprint& a, const Fingerprint& b);

}  // namespace lockstep::comm
