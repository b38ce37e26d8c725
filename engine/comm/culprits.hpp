// The rank that a hung case waits for, and the ranks that crashed, from the flight recorder alone.
//
//   for (const AwaitedRank& culprit : awaited_ranks(read_recorder(world)))
//     print(culprit.rank, culprit.text);   // 2, "ranks 0, 1 wait for it in all_reduce of 16 bytes ..."
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/recorder.hpp"

namespace lockstep::comm {

// A rank on which others wait.
struct AwaitedRank {
  int rank = 0;
  std::vector<int> by;  // ranks in a collective that this rank has not called
  // These, the ranks that wait for them, and so on, and those that have called such a collective so long ago that their
  // stories lack it.
  std::vector<int> behind;
  std::string text;  // the ranks `by` and the call of the first of them
};

// The ranks that peers wait for and that wait for no peer themselves, in rank order. Empty when no rank waits, and when
// the ranks wait for each other in a cycle. Call it while the case still runs, because an abort ends every wait.
std::vector<AwaitedRank> awaited_ranks(const std::vector<RankHistory>& stories);

// For the handler of a fatal signal: marks the rank as dead. Allocates nothing and wakes no rank.
void mark_crashed(device::HostWorld& world, int rank, std::string_view why);
// The ranks that have been marked or announced as dead so far.
std::vector<int> crashed_ranks(const device::HostWorld& world);

}  // namespace lockstep::comm
