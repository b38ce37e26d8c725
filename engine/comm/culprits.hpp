// Which rank a stuck case waits for, and which ranks crashed, from the flight recorder alone.
//
//   for (const WaitedFor& culprit : waited_for(read_recorder(world)))
//     print(culprit.rank, culprit.text);   // 2, "ranks 0, 1 wait for it in all_reduce of 16 bytes ..."
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/recorder.hpp"

namespace lockstep::comm {

struct WaitedFor {
  int rank = 0;
  std::vector<int> by;  // ranks in a collective that this rank has not called
  std::string text;     // the waiting ranks, with the call of each
};

// The ranks that peers wait for and that wait for no peer themselves, in order. Empty when nobody waits, and when the
// ranks wait for each other in a circle. To be asked of a case that is still under way: an abort ends every wait.
std::vector<WaitedFor> waited_for(const std::vector<RankStory>& stories);

// In the handler of the signal that ends a rank: marks the rank as dead. Allocates nothing and wakes nobody.
void note_crash(device::HostWorld& world, int rank, std::string_view why);
// Ranks that were marked so, or announced as dead, up to now.
std::vector<int> crashed_ranks(const device::HostWorld& world);

}  // namespace lockstep::comm
