#include "engine/comm/staging.hpp"

#include <algorithm>

#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {
// Bytes of one half.
constexpr std::int64_t small_half = 2048;
std::int64_t large_half(int size) { return size <= 16 ? 65536 : 16384; }
// The lowest bit of an area's offset marks the larger kind.
constexpr std::uint64_t is_large = 1;
}  // namespace

StagingShape::StagingShape(const MemberEntry* entries, int size) {
  const Fingerprint& fingerprint = entries[0].fingerprint;
  is_exchange = fingerprint.kind == exchange_kind;
  kind = is_exchange ? Operation::all_gather : static_cast<Operation>(fingerprint.kind);
  dtype = is_exchange ? DType::boolean : static_cast<DType>(fingerprint.dtype);
  op = static_cast<ReduceOp>(fingerprint.op);
  root = fingerprint.root;
  element = static_cast<std::int64_t>(size_of(dtype));
  for (int member = 0; member < size; ++member) count = std::max(count, entries[member].fingerprint.count);
  shards = kind == Operation::reduce_scatter || kind == Operation::all_to_all || kind == Operation::scatter ? size : 1;
  half = bounded_product(bounded_product(count, element), shards) <= small_half ? small_half : large_half(size);
  piece = std::max<std::int64_t>(half / (shards * element), 1);
  LOCKSTEP_CHECK(bounded_product(piece * shards, element) <= half, shards, " shards do not fit a staging area of ",
                 half, " bytes");
}

void StagingShape::allocate(WorldControl& world, MemberEntry& member) const {
  const bool large = half != small_half;
  if (member.staging != 0 && (!large || (member.staging & is_large) != 0)) return;
  member.staging = allocate_control(world, static_cast<std::size_t>(2 * half)) | (large ? is_large : 0);
}

std::uint64_t StagingShape::offset_of(const MemberEntry& member, std::int64_t number) const {
  return (member.staging & ~is_large) + static_cast<std::uint64_t>((number % 2) * half);
}

bool StagingShape::has_input(int member) const {
  const bool from_one = kind == Operation::broadcast || kind == Operation::scatter || kind == Operation::send;
  return !from_one || member == root;
}

std::size_t StagingShape::piece_bytes(const MemberEntry& member, int index, std::int64_t number) const {
  if (!has_input(index)) return 0;
  const std::int64_t n = std::min(piece, member.fingerprint.count - bounded_product(number, piece));
  return n <= 0 ? 0 : static_cast<std::size_t>(bounded_product((shards - 1) * piece + n, element));
}

}  // namespace lockstep::comm
