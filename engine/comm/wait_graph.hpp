// Finds cycles of ranks that wait for each other, while they wait.
//
// A rank is blocked when none of its threads can progress without a peer (device::Activity). It publishes this in its
// control area, together with the waits of its threads. The search starts from the ranks that can progress: those that
// are not blocked, and those with a wait that is about to end. It then repeats one rule until nothing changes: a rank
// can progress when one of its waits can end. A wait for arrivals can end only when every missing member can progress;
// any other wait can end when one of the awaited ranks can. The remaining ranks are deadlocked. A counter of changes
// shows that all of them were blocked at one moment.
//
// The rank that finds a deadlock poisons every group of the cycle with one text. The text describes the cycle and names
// the ranks that wait for it.
#pragma once

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// A wait of this thread for peers that is long enough to sleep in. It is published for the search and ends with the
// object.
class LongWait {
 public:
  LongWait(const IssuedCollective& issued, WaitReason reason, std::uint64_t target);
  // A wait that the search does not model: the rank counts as active.
  explicit LongWait(RankState& rank);
  // For `member` of a group to end the round of that number; `me` is this rank in the group.
  LongWait(RankState& rank, const GroupControl& group, int me, int member, std::uint64_t round);
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

 private:
  bool claim();
  void publish(const GroupControl& group);
  RankState& rank_;
  // Null for a wait that is not modelled, and when the rank already has `max_waits`: the rank then counts as active.
  WaitEntry* entry_ = nullptr;
};

// Called repeatedly by a thread in a LongWait that has lasted `waited_ns`. Searches once the wait has lasted 40 ms. A
// found deadlock poisons the groups, which ends their waits.
void check_for_deadlock(RankState& rank, std::int64_t waited_ns);
// Under a schedule in which no thread can run, however short the wait. `turn` counts the turns of this wait from 1. In
// the first turn of its waits, every rank publishes that it is blocked. Later turns search, so that the search sees all
// ranks that wait.
void search_for_deadlock(RankState& rank, int turn);
// The text is that of a deadlock in which this rank waits. On another host it may arrive as the reason why a peer
// ended, before it arrives as the poison of the group.
bool names_deadlock_of(const std::string& text, int rank);

}  // namespace lockstep::comm
