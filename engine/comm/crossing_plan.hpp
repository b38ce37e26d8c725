// Which bytes of a collective cross from host to host, as pure values (internal to engine/comm).
//
// The elements of a collective form one range (transport.hpp): for an all_to_all of n members it has n * n shards, of
// which number `to * n + from` goes from member `from` to member `to`. A piece is an interval of the range within one
// shard. Copies go straight from the host of the member that has the piece to the hosts that need it. A sum is made
// once, by the host that owns the piece, in the order of reduce.hpp, as shared memory does. An all_reduce gives each
// host an equal interval to own, and its owners send the sums back.
//
// Members whose partial sum is a node of the tree of reduce.hpp form a block, if they all live on one host. A host
// sends the partial sum of a block in place of its members' summands, so that eight ranks of a host send no more than
// one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/comm/control.hpp"

namespace lockstep::comm {

// The collective, and where its members live.
struct CrossingShape {
  CrossingShape(const Fingerprint& fingerprint, std::vector<int> host_of_member);

  Operation kind;
  DType dtype;
  ReduceOp op;
  int root;
  int size;                  // members
  std::int64_t shard;        // elements
  std::int64_t element;      // bytes
  std::vector<int> host_of;  // per member
  std::vector<int> hosts;    // of the group, in ascending order
  int block;                 // of a sum: members per block, a power of two; the last block may have fewer

  bool is_sum() const { return kind == Operation::all_reduce || kind == Operation::reduce_scatter; }
  std::int64_t total() const;  // elements of the range
  std::vector<int> members_on(int host) const;
  // Of a sum. A block is named by its first member.
  int num_blocks() const { return (size + block - 1) / block; }
  std::vector<int> blocks_on(int host) const;
  int end_of_block(int first) const { return std::min(first + block, size); }
};

struct Piece {
  std::int64_t begin = 0, n = 0;  // elements, in the range
};

// A piece of one member, or of a sum the partial sum of one block, that a host sends to another one.
struct Crossing {
  int from = 0;  // member, or first member of the block
  int to_host = 0;
  Piece piece;
  friend bool operator==(const Crossing&, const Crossing&) = default;
};
inline bool operator==(const Piece& a, const Piece& b) { return a.begin == b.begin && a.n == b.n; }

// What this host sends of its members' inputs, in order. Of a sum: the summands, one per block.
std::vector<Crossing> crossings_from(const CrossingShape& shape, int host);
// The pieces that this host sums.
std::vector<Piece> pieces_owned(const CrossingShape& shape, int host);
// Elements that this host receives as copies, or as sums of an all_reduce.
std::int64_t elements_received(const CrossingShape& shape, int host);

// Where a piece that begins here lies in the input of a member that has it, and in the outputs of the members on a host
// that get it.
struct Place {
  int member = 0;
  std::int64_t at = 0;  // elements
};
Place source_of(const CrossingShape& shape, std::int64_t begin);
std::vector<Place> destinations_on(const CrossingShape& shape, int host, std::int64_t begin);

}  // namespace lockstep::comm
