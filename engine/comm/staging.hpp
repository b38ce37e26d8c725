// How the strings of an exchange travel (internal to engine/comm): in pieces, through the control area. A member has a
// staging area of two halves: it copies one piece in while peers read the other.
#pragma once

#include "engine/comm/control.hpp"

namespace lockstep::comm {

inline constexpr std::int64_t longest_piece = 16384;  // bytes

// Gives the member an area in the control area. It stays with the entry and serves later exchanges of the slot.
void allocate_staging(WorldControl& world, MemberEntry& member);
// Where the area of the member has the piece of this number.
std::byte* staged_piece(WorldControl& world, const MemberEntry& member, std::int64_t number);
// Bytes of this piece of the member's string: 0 after its end.
std::size_t piece_bytes(const MemberEntry& member, std::int64_t number);

}  // namespace lockstep::comm
