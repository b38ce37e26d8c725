#include "engine/comm/culprits.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "engine/comm/control.hpp"
#include "engine/comm/messages.hpp"
#include "engine/core/text.hpp"

namespace lockstep::comm {

namespace {

// A thread of the rank is in the call. An asynchronous call may have none.
bool is_under_way(const RecordedCollective& call) {
  return call.state == CollectiveState::waiting || call.state == CollectiveState::running;
}

// The sequence number of the rank's next call in the group.
std::uint64_t num_called(const RankHistory& story, std::uint64_t group) {
  std::uint64_t called = 0;
  for (const RecordedCollective& call : story.collectives)
    if (call.group_id == group) called = std::max(called, call.sequence + 1);
  return called;
}

bool is_in(const RankHistory& story, const RecordedCollective& call) {
  return num_called(story, call.group_id) > call.sequence;
}

// Also if the story does not reach back to the call.
bool has_called(const RankHistory& story, const RecordedCollective& call) {
  return is_in(story, call) || std::find(call.arrived.begin(), call.arrived.end(), story.rank) != call.arrived.end();
}

std::string waiting_text(const std::vector<int>& ranks) {
  return str(named_ranks_text(ranks), ranks.size() == 1 ? " waits" : " wait");
}

using Waits = std::map<int, std::set<int>>;  // awaited rank -> waiting ranks

std::set<int> waiting_behind(const Waits& waiting_for, int rank) {
  std::set<int> found;
  std::vector<int> left = {rank};
  while (!left.empty()) {
    const auto by = waiting_for.find(left.back());
    left.pop_back();
    if (by == waiting_for.end()) continue;
    for (const int each : by->second)
      if (found.insert(each).second) left.push_back(each);
  }
  return found;
}

}  // namespace

std::vector<AwaitedRank> awaited_ranks(const std::vector<RankHistory>& stories) {
  std::map<int, const RankHistory*> by_rank;
  for (const RankHistory& story : stories) by_rank[story.rank] = &story;
  Waits waiting_for;
  // Awaited rank -> ranks whose stories do not reach back to the call in which they may wait for it.
  Waits called_before;
  std::set<int> waiting;
  for (const RankHistory& story : stories) {
    if (story.ended) continue;
    for (const RecordedCollective& call : story.collectives) {
      if (!is_under_way(call)) continue;
      for (int member : call.members) {
        const auto peer = by_rank.find(member);
        if (peer == by_rank.end() || has_called(*peer->second, call)) continue;
        waiting_for[member].insert(story.rank);
        waiting.insert(story.rank);
        for (int other : call.arrived)
          if (const auto its = by_rank.find(other); its != by_rank.end() && !is_in(*its->second, call))
            called_before[member].insert(other);
      }
    }
  }
  std::vector<AwaitedRank> found;
  for (const auto& [rank, by] : waiting_for) {
    if (waiting.contains(rank)) continue;
    AwaitedRank one;
    one.rank = rank;
    one.by.assign(by.begin(), by.end());
    std::set<int> behind = called_before[rank];
    behind.merge(waiting_behind(waiting_for, rank));
    one.behind.assign(behind.begin(), behind.end());
    one.text = str(waiting_text(one.by), " for it ", last_call_text(*by_rank.at(one.by.front())));
    found.push_back(std::move(one));
  }
  return found;
}

void mark_crashed(device::HostWorld& world, int rank, std::string_view why) {
  RankControl& crashed = control_of(world).rank(rank);
  crashed.end_reason.try_set(why);
  RankEnd none = RankEnd::none;
  crashed.end.compare_exchange_strong(none, RankEnd::died);
}

std::vector<int> crashed_ranks(const device::HostWorld& world) {
  const WorldControl& control = control_of(world);
  std::vector<int> ranks;
  for (int rank = 0; rank < control.world_size; ++rank)
    if (control.rank(rank).end.load() == RankEnd::died) ranks.push_back(rank);
  return ranks;
}

}  // namespace lockstep::comm
