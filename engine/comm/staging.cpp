#include "engine/comm/staging.hpp"

#include <algorithm>

namespace lockstep::comm {

void allocate_staging(WorldControl& world, MemberEntry& member) {
  if (member.staging == 0) member.staging = allocate_control(world, 2 * longest_piece);
}

std::byte* staged_piece(WorldControl& world, const MemberEntry& member, std::int64_t number) {
  return world.at(member.staging) + number % 2 * longest_piece;
}

std::size_t piece_bytes(const MemberEntry& member, std::int64_t number) {
  const std::int64_t left = member.fingerprint.count - bounded_product(number, longest_piece);
  return static_cast<std::size_t>(std::clamp<std::int64_t>(left, 0, longest_piece));
}

}  // namespace lockstep::comm
