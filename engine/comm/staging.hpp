// How a staged collective is cut into pieces (internal to engine/comm). A piece is a range of elements, taken from
// every shard of a member's input. A member has a staging area of two halves: one piece is copied in while peers read
// the other.
#pragma once

#include "engine/comm/control.hpp"

namespace lockstep::comm {

struct StagingShape {
  // Of the collective that all these members have entered.
  StagingShape(const MemberEntry* entries, int size);
  // Gives the member an area in the control area. The area stays with its entry and serves later collectives of the
  // slot.
  void allocate(WorldControl& world, MemberEntry& member) const;
  // Where the area of a member has the piece of this number, in the control area.
  std::uint64_t offset_of(const MemberEntry& member, std::int64_t number) const;
  // Bytes of a member's piece, from its start to the last element of its last shard.
  std::size_t piece_bytes(const MemberEntry& member, int index, std::int64_t number) const;
  bool has_input(int member) const;

  Operation kind = Operation::barrier;
  bool is_exchange = false;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t element = 1, count = 0, shards = 1, half = 0,
               piece = 1;  // bytes; elements of a shard; ..; bytes; elements
};

}  // namespace lockstep::comm
