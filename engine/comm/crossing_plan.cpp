#include "engine/comm/crossing_plan.hpp"

#include <algorithm>

namespace lockstep::comm {

namespace {

constexpr std::int64_t piece_bytes = std::int64_t{512} << 10;
// Intervals of an all_reduce begin at multiples of this many elements, so that vector loads stay aligned.
constexpr std::int64_t granule = 64;

void cut(const CrossingShape& shape, std::int64_t begin, std::int64_t n, std::vector<Piece>& pieces) {
  const std::int64_t largest = std::max<std::int64_t>(piece_bytes / shape.element, 1);
  for (std::int64_t at = begin; at < begin + n; at += largest)
    pieces.push_back({at, std::min(largest, begin + n - at)});
}

// The interval of an all_reduce that the host number `index` of the group owns.
Piece interval_of(const CrossingShape& shape, std::size_t index) {
  const auto num_hosts = static_cast<std::int64_t>(shape.hosts.size());
  const std::int64_t granules = (shape.shard + granule - 1) / granule;
  const auto bound = [&](std::int64_t i) { return std::min(granules * i / num_hosts * granule, shape.shard); };
  const auto i = static_cast<std::int64_t>(index);
  return {bound(i), bound(i + 1) - bound(i)};
}

// The shards of the range that a member's input holds.
std::vector<std::int64_t> shards_from(const CrossingShape& shape, int member) {
  std::vector<std::int64_t> shards;
  switch (shape.kind) {
    case Operation::all_gather:
    case Operation::gather:
      return {member};
    case Operation::broadcast:
    case Operation::send:
    case Operation::receive:
      if (member == shape.root) return {0};
      return {};
    case Operation::scatter:
      if (member == shape.root)
        for (int to = 0; to < shape.size; ++to) shards.push_back(to);
      return shards;
    case Operation::all_to_all:
      for (int to = 0; to < shape.size; ++to) shards.push_back(std::int64_t{to} * shape.size + member);
      return shards;
    default:
      return {};
  }
}

bool has(const std::vector<Place>& places) { return !places.empty(); }

// 16-bit types are added in float32 and rounded once, so a partial sum of them is not a value of the type.
bool has_partial_sums(DType dtype) { return dtype != DType::float16 && dtype != DType::bfloat16; }

// The largest number of members per block with which every block lives on one host.
int block_of(const std::vector<int>& host_of) {
  const std::size_t size = host_of.size();
  const auto fits = [&](std::size_t block) {
    for (std::size_t member = 0; member < size; ++member)
      if (host_of[member] != host_of[member / block * block]) return false;
    return true;
  };
  std::size_t block = 1;
  while (block < size && fits(2 * block)) block *= 2;
  return static_cast<int>(block);
}

}  // namespace

CrossingShape::CrossingShape(const Fingerprint& fingerprint, std::vector<int> host_of_member)
    : kind(static_cast<Operation>(fingerprint.kind)),
      dtype(static_cast<DType>(fingerprint.dtype)),
      op(static_cast<ReduceOp>(fingerprint.op)),
      root(fingerprint.root),
      size(static_cast<int>(host_of_member.size())),
      shard(fingerprint.count),
      element(static_cast<std::int64_t>(size_of(dtype))),
      host_of(std::move(host_of_member)),
      hosts(host_of),
      block(is_sum() && has_partial_sums(dtype) ? block_of(host_of) : 1) {
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
}

std::int64_t CrossingShape::total() const {
  switch (kind) {
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::gather:
    case Operation::scatter:
      return bounded_product(shard, size);
    case Operation::all_to_all:
      return bounded_product(shard, std::int64_t{size} * size);
    case Operation::barrier:
      return 0;
    default:
      return shard;
  }
}

std::vector<int> CrossingShape::members_on(int host) const {
  std::vector<int> members;
  for (int member = 0; member < size; ++member)
    if (host_of[static_cast<std::size_t>(member)] == host) members.push_back(member);
  return members;
}

std::vector<int> CrossingShape::blocks_on(int host) const {
  std::vector<int> blocks;
  for (int first = 0; first < size; first += block)
    if (host_of[static_cast<std::size_t>(first)] == host) blocks.push_back(first);
  return blocks;
}

Place source_of(const CrossingShape& shape, std::int64_t begin) {
  const std::int64_t index = begin / shape.shard, within = begin % shape.shard;
  switch (shape.kind) {
    case Operation::all_gather:
    case Operation::gather:
      return {static_cast<int>(index), within};
    case Operation::all_to_all:
      return {static_cast<int>(index % shape.size), index / shape.size * shape.shard + within};
    default:  // the root has the whole range
      return {shape.root, begin};
  }
}

std::vector<Place> destinations_on(const CrossingShape& shape, int host, std::int64_t begin) {
  std::vector<Place> places;
  const auto add = [&](std::int64_t member, std::int64_t at) {
    const auto i = static_cast<std::size_t>(member);
    if (i < shape.host_of.size() && shape.host_of[i] == host) places.push_back({static_cast<int>(member), at});
  };
  const std::int64_t index = begin / shape.shard, within = begin % shape.shard;
  switch (shape.kind) {
    case Operation::all_reduce:
    case Operation::all_gather:
    case Operation::broadcast:
      for (int member = 0; member < shape.size; ++member) add(member, begin);
      break;
    case Operation::send:
    case Operation::receive:
      for (int member = 0; member < shape.size; ++member)
        if (member != shape.root) add(member, begin);
      break;
    case Operation::gather:
      add(shape.root, begin);
      break;
    case Operation::scatter:
    case Operation::reduce_scatter:
      add(index, within);
      break;
    case Operation::all_to_all:
      add(index / shape.size, index % shape.size * shape.shard + within);
      break;
    case Operation::barrier:
      break;
  }
  return places;
}

std::vector<Piece> pieces_owned(const CrossingShape& shape, int host) {
  std::vector<Piece> pieces;
  if (shape.kind == Operation::all_reduce) {
    for (std::size_t i = 0; i < shape.hosts.size(); ++i)
      if (shape.hosts[i] == host) {
        const Piece interval = interval_of(shape, i);
        cut(shape, interval.begin, interval.n, pieces);
      }
  } else if (shape.kind == Operation::reduce_scatter) {
    for (const int member : shape.members_on(host))
      cut(shape, bounded_product(shape.shard, std::int64_t{member}), shape.shard, pieces);
  }
  return pieces;
}

std::vector<Crossing> crossings_from(const CrossingShape& shape, int host) {
  std::vector<Crossing> crossings;
  if (shape.is_sum()) {
    const std::vector<int> blocks = shape.blocks_on(host);
    // Piece by piece over all owners, so that all of them can begin.
    std::vector<std::vector<Piece>> owned;
    std::size_t most = 0;
    for (const int owner : shape.hosts) {
      owned.push_back(owner == host ? std::vector<Piece>() : pieces_owned(shape, owner));
      most = std::max(most, owned.back().size());
    }
    for (std::size_t k = 0; k < most; ++k)
      for (std::size_t i = 0; i < owned.size(); ++i)
        for (const int block : blocks)
          if (k < owned[i].size()) crossings.push_back({block, shape.hosts[i], owned[i][k]});
    return crossings;
  }
  for (const int member : shape.members_on(host)) {
    for (const std::int64_t index : shards_from(shape, member)) {
      std::vector<Piece> pieces;
      cut(shape, bounded_product(shape.shard, index), shape.shard, pieces);
      for (const Piece& piece : pieces)
        for (const int to : shape.hosts)
          if (to != host && has(destinations_on(shape, to, piece.begin))) crossings.push_back({member, to, piece});
    }
  }
  return crossings;
}

std::int64_t elements_received(const CrossingShape& shape, int host) {
  std::int64_t elements = 0;
  if (shape.kind == Operation::all_reduce) {
    for (std::size_t i = 0; i < shape.hosts.size(); ++i)
      if (shape.hosts[i] != host) elements += interval_of(shape, i).n;
    return elements;
  }
  if (shape.is_sum()) return 0;
  for (const int from : shape.hosts)
    if (from != host)
      for (const Crossing& each : crossings_from(shape, from))
        if (each.to_host == host) elements += each.piece.n;
  return elements;
}

}  // namespace lockstep::comm
