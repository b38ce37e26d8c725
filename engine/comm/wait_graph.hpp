// Ranks that wait for each other in a cycle, found while they wait.
//
// A rank is stuck when none of its threads can go on without a peer (device::Activity). It then says so in its control
// area, beside the waits that its threads are in. A wait of a stuck rank can end only when others act: an arrival needs
// every member that has not arrived; other waits are taken to need any one other member. A rank that is not stuck may
// do anything; so may a stuck rank as soon as one of its waits can end. Ranks that are left over when nothing more
// follows from that can never go on. A counter of changes shows that all of them were stuck at one moment.
//
// The rank that finds it poisons every group of the cycle with one text, which names the cycle and its waiting ranks.
#pragma once

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// A wait of this thread for peers, long enough to sleep and to tell in.
class LongWait {
 public:
  LongWait(const Issued& issued, Waiting for_what, std::uint64_t target);
  // For something that the graph does not know: the rank counts as active.
  explicit LongWait(RankState& rank);
  // For a member of a group to end that round.
  LongWait(RankState& rank, const GroupControl& group, int me, int member, std::uint64_t round);
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

 private:
  bool claim();
  void show(const GroupControl& group);
  RankState& rank_;
  WaitEntry* entry_ = nullptr;  // null when it is not shown, as where the rank has too many: then it counts as active
};

// Called now and then by a thread in a LongWait that has lasted so long. After a deadlock was found the groups are
// poisoned, and the waits end by that.
void look_for_deadlock(RankState& rank, std::int64_t waited_ns);

}  // namespace lockstep::comm
