// Which bytes cross between hosts, by brute force over all hosts of a layout.
#include "engine/comm/crossing_plan.hpp"

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

CrossingShape shape_of(Operation kind, std::vector<int> host_of, std::int64_t count, DType dtype = DType::float32) {
  Fingerprint fingerprint;
  fingerprint.kind = static_cast<std::uint8_t>(kind);
  fingerprint.dtype = static_cast<std::uint8_t>(dtype);
  fingerprint.count = count;
  return {fingerprint, std::move(host_of)};
}

// The pairwise tree as text: "((0+1)+2)".
std::string tree(std::vector<std::string> level) {
  while (level.size() > 1) {
    std::vector<std::string> next;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2) next.push_back("(" + level[i] + "+" + level[i + 1] + ")");
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  return level.front();
}

const std::vector<std::vector<int>> layouts = {{0, 1},          {0, 0, 1, 1},       {0, 1, 0, 1},
                                               {0, 0, 1, 2, 2}, {0, 0, 0, 0, 1, 1}, {0, 0, 0, 1, 1, 1},
                                               {0, 0, 0, 0},    {1, 1, 0, 0, 0},    {0, 0, 0, 0, 1, 1, 1, 1, 2}};

TEST(Blocks, AreNodesOfTheTree) {
  for (const std::vector<int>& host_of : layouts) {
    const CrossingShape shape = shape_of(Operation::all_reduce, host_of, 100);
    std::vector<std::string> members, blocks;
    for (int member = 0; member < shape.size; ++member) members.push_back(std::to_string(member));
    for (int first = 0; first < shape.size; first += shape.block) {
      for (int member = first; member < shape.end_of_block(first); ++member)
        EXPECT_EQ(host_of[static_cast<std::size_t>(member)], host_of[static_cast<std::size_t>(first)]);
      blocks.push_back(tree({members.begin() + first, members.begin() + shape.end_of_block(first)}));
    }
    EXPECT_EQ(tree(blocks), tree(members));
    EXPECT_EQ(static_cast<int>(blocks.size()), shape.num_blocks());
  }
}

TEST(Blocks, HoldAsManyMembersAsTheHostsAllow) {
  const auto block = [](std::vector<int> host_of, DType dtype = DType::float32) {
    return shape_of(Operation::reduce_scatter, std::move(host_of), 8, dtype).block;
  };
  EXPECT_EQ(block({0, 0, 0, 0, 1, 1, 1, 1}), 4);
  EXPECT_EQ(block({0, 0, 0, 0, 1, 1}), 4);
  EXPECT_EQ(block({0, 0, 1, 2, 2}), 1);
  EXPECT_EQ(block({0, 0, 0, 1, 1, 1}), 1);
  EXPECT_EQ(block({0, 0, 1, 1}, DType::bfloat16), 1);  // a partial sum would be rounded
}

// Every piece of a sum gets one summand of every block from its host; every host's interval is owned once.
TEST(Crossings, BringEachSummandToItsOwnerOnce) {
  for (const std::vector<int>& host_of : layouts) {
    for (const Operation kind : {Operation::all_reduce, Operation::reduce_scatter}) {
      const CrossingShape shape = shape_of(kind, host_of, 300'001);
      std::int64_t owned = 0;
      std::map<std::pair<int, std::int64_t>, std::set<int>> summands;  // by owner and begin of the piece
      for (const int host : shape.hosts) {
        for (const Piece& piece : pieces_owned(shape, host)) {
          owned += piece.n;
          for (const int block : shape.blocks_on(host)) summands[{host, piece.begin}].insert(block);
        }
      }
      EXPECT_EQ(owned, shape.total());
      for (const int host : shape.hosts)
        for (const Crossing& each : crossings_from(shape, host)) {
          EXPECT_EQ(host_of[static_cast<std::size_t>(each.from)], host);
          EXPECT_TRUE((summands[{each.to_host, each.piece.begin}].insert(each.from).second));
        }
      for (const auto& [piece, blocks] : summands) EXPECT_EQ(static_cast<int>(blocks.size()), shape.num_blocks());
    }
  }
}

// A host with many ranks sends as much of an all_reduce as a host with one.
TEST(Crossings, OfASumAreAsManyAsWithOneRankPerHost) {
  const auto sent = [](std::vector<int> host_of) {
    const CrossingShape shape = shape_of(Operation::all_reduce, std::move(host_of), 1 << 20);
    std::int64_t elements = 0;
    for (const Crossing& each : crossings_from(shape, 0)) elements += each.piece.n;
    return elements;
  };
  EXPECT_EQ(sent({0, 1}), 1 << 19);
  EXPECT_EQ(sent({0, 0, 0, 0, 1, 1, 1, 1}), 1 << 19);
  EXPECT_EQ(sent({0, 1, 0, 1}), 1 << 20);  // no two neighbours share a host
}

TEST(Crossings, OfATransferGoToTheMemberThatIsNotTheRoot) {
  for (const Operation kind : {Operation::send, Operation::receive}) {
    for (const int root : {0, 1}) {
      Fingerprint fingerprint;
      fingerprint.kind = static_cast<std::uint8_t>(kind);
      fingerprint.dtype = static_cast<std::uint8_t>(DType::float32);
      fingerprint.root = root;
      fingerprint.count = 5;
      const CrossingShape shape(fingerprint, {0, 1});
      EXPECT_TRUE(destinations_on(shape, root, 2).empty());
      const std::vector<Place> places = destinations_on(shape, 1 - root, 2);
      ASSERT_EQ(places.size(), 1U);
      EXPECT_EQ(places[0].member, 1 - root);
      EXPECT_EQ(places[0].at, 2);
      EXPECT_EQ(elements_received(shape, 1 - root), 5);
      EXPECT_EQ(elements_received(shape, root), 0);
    }
  }
}

// Every element of every output arrives on its host once.
TEST(Crossings, BringEachCopyToItsHostOnce) {
  for (const std::vector<int>& host_of : layouts) {
    for (const Operation kind :
         {Operation::all_gather, Operation::all_to_all, Operation::broadcast, Operation::gather, Operation::scatter}) {
      const CrossingShape shape = shape_of(kind, host_of, 7);
      for (const int to : shape.hosts) {
        std::map<std::int64_t, int> arrivals;
        for (const int from : shape.hosts)
          if (from != to)
            for (const Crossing& each : crossings_from(shape, from))
              if (each.to_host == to)
                for (std::int64_t i = 0; i < each.piece.n; ++i) ++arrivals[each.piece.begin + i];
        for (std::int64_t at = 0; at < shape.total(); ++at) {
          const int source = host_of[static_cast<std::size_t>(source_of(shape, at).member)];
          EXPECT_EQ(arrivals[at], source != to && !destinations_on(shape, to, at).empty() ? 1 : 0);
        }
        std::int64_t total = 0;
        for (const auto& [at, times] : arrivals) total += times;
        EXPECT_EQ(elements_received(shape, to), total);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
