#include "engine/comm/wait_graph.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/messages.hpp"
#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"

namespace lockstep::comm {

namespace {

// A shorter wait usually ends by the arrival of a slow rank.
constexpr std::int64_t min_wait_ns = 40'000'000;
constexpr std::int64_t between_searches_ns = 20'000'000;
constexpr std::int64_t between_hosts_confirmation_ns = 500'000'000;
constexpr std::uint64_t being_written = 1;

// A published wait, as another rank reads it.
struct Wait {
  GroupControl* group = nullptr;
  std::uint64_t offset = 0, sequence = 0, round = 0, target = 0, record = 0;
  WaitReason reason = WaitReason::arrivals;
  int me = 0, member = 0;

  std::vector<int> awaited;  // world ranks
  // True: the wait ends only after all awaited ranks have acted. False: any one of them can end it.
  bool needs_all() const { return reason == WaitReason::arrivals || knows_leavers(); }
  // A wait for a slot whose members are all on this host: awaited are those that have not left it.
  bool knows_leavers() const { return reason == WaitReason::slot && group->spans_hosts == 0; }
};

struct Node {
  std::uint64_t changes = 0;
  bool can_progress = true;
  std::vector<Wait> waits;
};

bool has_arrived(const Wait& wait, int member) {
  const std::uint32_t generation = static_cast<std::uint32_t>(wait.sequence / ring_slots);
  const MemberEntry& entry = wait.group->slot(wait.sequence).entries()[member];
  return entry.arrival.load(std::memory_order_acquire) == generation + 1;
}

// The awaited event has happened, or an error is about to end the wait.
bool is_about_to_end(Wait& wait) {
  GroupControl& group = *wait.group;
  if (group.poison.is_set()) return true;
  Slot& slot = group.slot(wait.sequence);
  const std::uint32_t generation = static_cast<std::uint32_t>(wait.sequence / ring_slots);
  switch (wait.reason) {
    case WaitReason::slot:
      return slot.generation.load(std::memory_order_acquire) == generation;
    case WaitReason::arrivals:
      if (slot.generation.load(std::memory_order_acquire) != generation) return true;
      if (slot.stage.load(std::memory_order_acquire) != Stage::filling) return true;
      for (int member = 0; member < group.size; ++member)
        if (group.rounds_of(member).has_skipped(wait.round, wait.sequence)) return true;
      return false;
    case WaitReason::data:
      return true;  // some member computes the last chunks
    case WaitReason::staging_barrier:
      return slot.barrier_arrivals.load(std::memory_order_acquire) >= wait.target;
    case WaitReason::end_of_round:
      return group.rounds_of(wait.member).ended.load(std::memory_order_acquire) >= wait.target;
  }
  return true;
}

// The member has left the collective that has the awaited slot, as far as its flight recorder knows.
bool has_left(WorldControl& world, Wait& wait, int member) {
  const MemberEntry& entry = wait.group->slot(wait.sequence).entries()[member];
  // Before it comes to that collective, the entry is that of an earlier one.
  if (entry.arrival.load(std::memory_order_acquire) != wait.sequence / ring_slots) return false;
  const Record& call = world.rank(wait.group->members()[member]).records[entry.record % recorder_entries];
  return call.state.load(std::memory_order_acquire) == CollectiveState::done || call.group != wait.offset ||
         call.sequence + ring_slots != wait.sequence;
}

// Also if the flight recorder does not keep the call any more. A call that waits for its slot is not known there.
std::string_view operation_of(const Wait& wait) {
  if (!has_arrived(wait, wait.me)) return "a collective";
  return old_operation(*wait.group, wait.me, wait.group->slot(wait.sequence).entries()[wait.me].fingerprint);
}

void find_awaited(WorldControl& world, Wait& wait) {
  for (int member = 0; member < wait.group->size; ++member) {
    if (member == wait.me || (wait.reason == WaitReason::arrivals && has_arrived(wait, member)) ||
        (wait.knows_leavers() && has_left(world, wait, member)) ||
        (wait.reason == WaitReason::end_of_round && member != wait.member))
      continue;
    wait.awaited.push_back(wait.group->members()[member]);
  }
}

class WaitGraph {
 public:
  explicit WaitGraph(WorldControl& world) : world_(world), nodes_(static_cast<std::size_t>(world.world_size)) {}

  // Whether this rank is in a deadlock, or waits for one.
  bool finds(int rank) {
    for (int r = 0; r < world_.world_size; ++r) read_state(r);
    for (int r = 0; r < world_.world_size; ++r) read_waits(r);
    propagate();
    if (node(rank).can_progress) return false;
    collect(rank);
    if (deadlocked_.empty()) return false;
    for (int r = 0; r < world_.world_size; ++r)
      if (!node(r).can_progress && !is_still_blocked(r)) return false;
    return true;
  }

  // Poisons the groups of the cycle. Ranks that wait for the cycle then progress, or fail with its ranks.
  void poison(ControlPlane& plane, const std::string& text) {
    const auto group_of = [this](std::size_t i) -> GroupControl& { return *next(deadlocked_[i]).second->group; };
    const auto is_of_this_host = [this](const GroupControl& group) {
      return group.spans_hosts == 0 && world_.is_local(group.members()[0]);
    };
    // All groups before any rank wakes: a rank that fails would poison the next group with a text of its own, and its
    // end would end the waits of the others.
    std::vector<GroupControl*> elsewhere;
    for (std::size_t i = 0; i < cycle_length_; ++i) {
      GroupControl* const group = &group_of(i);
      const bool is_known = std::find(elsewhere.begin(), elsewhere.end(), group) != elsewhere.end();
      if (!is_of_this_host(*group) && !is_known && !group->proposed_poison.is_set()) elsewhere.push_back(group);
    }
    const auto decides = [this](const GroupControl& group) {
      return world_.hosts_control()->host_of()[group.members()[0]];
    };
    for (auto each = elsewhere.begin(); each != elsewhere.end(); ++each) {
      const bool more_follow = std::any_of(
          each + 1, elsewhere.end(), [&](const GroupControl* later) { return decides(*later) == decides(**each); });
      plane.propose_poison(**each, text, Cause::own, more_follow);
    }
    for (std::size_t i = 0; i < cycle_length_; ++i)
      if (is_of_this_host(group_of(i))) group_of(i).poison.try_set(text);
    notify_all(world_);
    for (std::size_t i = 0; i < cycle_length_; ++i)
      if (group_of(i).spans_hosts != 0) plane.poison(group_of(i), text, Cause::own);
  }

  std::string text() const;

  // What must stay equal for a deadlock to be the same one: the ranks and the numbers of their waits.
  std::uint64_t signature() const {
    std::uint64_t digest = fnv1a_basis;
    for (const int r : deadlocked_)
      digest = (digest ^ (node(r).changes * 4096 + static_cast<std::uint64_t>(r))) * fnv1a_prime;
    return digest;
  }
  bool is_local() const {
    return std::all_of(deadlocked_.begin(), deadlocked_.end(), [this](int r) { return world_.is_local(r); });
  }

 private:
  Node& node(int rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  const Node& node(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }

  bool is_still_blocked(int r) const {
    const RankControl& rank = world_.rank(r);
    return rank.wait_changes.load() == node(r).changes && rank.end.load() == RankEnd::none;
  }

  void read_state(int r) {
    const RankControl& rank = world_.rank(r);
    node(r).changes = rank.wait_changes.load();
    node(r).can_progress = rank.end.load() != RankEnd::none || rank.blocked_at.load() != node(r).changes + 1;
  }

  // Reads the waits of a blocked rank. A torn read is detected by `wait_changes`.
  void read_waits(int r) {
    if (node(r).can_progress) return;
    for (const WaitEntry& entry : world_.rank(r).wait_entries) {
      Wait wait;
      wait.offset = entry.group.load();
      if (wait.offset == 0) continue;
      wait.sequence = entry.sequence.load();
      wait.round = entry.round.load();
      wait.target = entry.target.load();
      wait.record = entry.record.load();
      wait.reason = static_cast<WaitReason>(entry.reason.load());
      wait.me = static_cast<int>(entry.me.load());
      wait.member = entry.member.load();
      node(r).waits.push_back(std::move(wait));
    }
    if (!is_still_blocked(r)) {
      node(r).can_progress = true;
      return;
    }
    for (Wait& wait : node(r).waits) {
      wait.group = &world_.group(wait.offset);
      if (is_about_to_end(wait)) node(r).can_progress = true;
      find_awaited(world_, wait);
    }
  }

  bool can_end(const Wait& wait) const {
    const auto free = [this](int r) { return node(r).can_progress; };
    return wait.needs_all() ? std::all_of(wait.awaited.begin(), wait.awaited.end(), free)
                            : std::any_of(wait.awaited.begin(), wait.awaited.end(), free);
  }

  // A rank that can progress may end the waits of others, repeatedly.
  void propagate() {
    for (bool changed = true; changed;) {
      changed = false;
      for (Node& each : nodes_) {
        if (each.can_progress) continue;
        const auto ends = [this](const Wait& wait) { return can_end(wait); };
        if (!std::any_of(each.waits.begin(), each.waits.end(), ends)) continue;
        each.can_progress = changed = true;
      }
    }
  }

  // The first deadlocked rank that this one waits for, and the wait.
  std::pair<int, const Wait*> next(int r) const {
    for (const Wait& wait : node(r).waits)
      for (const int awaited : wait.awaited)
        if (!node(awaited).can_progress) return {awaited, &wait};
    return {-1, nullptr};
  }

  // Collects the cycle that is reached from this rank, then all ranks that wait for it, directly or not.
  void collect(int rank) {
    std::vector<bool> visited(nodes_.size(), false);
    int at = rank;
    for (; at >= 0 && !visited[static_cast<std::size_t>(at)]; at = next(at).first)
      visited[static_cast<std::size_t>(at)] = true;
    if (at < 0) return;
    std::fill(visited.begin(), visited.end(), false);
    for (; !visited[static_cast<std::size_t>(at)]; at = next(at).first) {
      visited[static_cast<std::size_t>(at)] = true;
      deadlocked_.push_back(at);
    }
    // The text starts at the lowest rank of the cycle.
    std::rotate(deadlocked_.begin(), std::min_element(deadlocked_.begin(), deadlocked_.end()), deadlocked_.end());
    cycle_length_ = deadlocked_.size();
    for (bool changed = true; changed;) {
      changed = false;
      for (int r = 0; r < world_.world_size; ++r) {
        if (node(r).can_progress || visited[static_cast<std::size_t>(r)]) continue;
        const int awaited = next(r).first;
        if (awaited < 0 || !visited[static_cast<std::size_t>(awaited)]) continue;
        visited[static_cast<std::size_t>(r)] = changed = true;
        deadlocked_.push_back(r);
      }
    }
  }

  // Of a wait of this rank. A later call may have taken its place (Record::is_of()).
  const Record& record_of(int r, const Wait& wait) const {
    return world_.rank(r).records[wait.record % recorder_entries];
  }

  std::string wait_text(int r) const;
  std::string hint() const;

  WorldControl& world_;
  std::vector<Node> nodes_;
  std::vector<int> deadlocked_;  // the cycle, in order; then the ranks that wait for it
  std::size_t cycle_length_ = 0;
};

constexpr const char* deadlock_head = "deadlock: ";
std::string wait_head(int rank) { return str("rank ", rank, " waits for rank "); }

// "rank 0 waits for rank 1 in all_reduce(sum) of 4 float32 at line 3 (#0 of group [0, 1], axis a)".
std::string WaitGraph::wait_text(int r) const {
  const auto [awaited, wait] = next(r);
  std::string out = wait_head(r) + str(awaited);
  const std::string group = group_text(*wait->group);
  if (wait->reason == WaitReason::end_of_round) return out + str(" at the end of a backward (group ", group, ")");
  const Record& record = record_of(r, *wait);
  const bool is_kept = record.is_of(wait->offset, wait->sequence);
  const std::string axis = is_kept ? record.axis : "";
  return out + str(" in ", is_kept ? call_text(world_, record) : old_call_text(operation_of(*wait)), " (#",
                   wait->sequence, " of group ", group, axis.empty() ? "" : str(", axis ", axis), ")");
}

std::string WaitGraph::hint() const {
  const auto wait_of = [this](std::size_t i) -> const Wait& { return *next(deadlocked_[i]).second; };
  const auto all_are = [&](Operation operation) {
    for (std::size_t i = 0; i < cycle_length_; ++i) {
      const Wait& wait = wait_of(i);
      if (wait.reason == WaitReason::end_of_round) return false;
      const Record& record = record_of(deadlocked_[i], wait);
      if (!record.is_of(wait.offset, wait.sequence) || record.kind != static_cast<std::uint8_t>(operation))
        return false;
    }
    return true;
  };
  if (all_are(Operation::send)) return ". All of them send; one must receive first";
  if (all_are(Operation::receive)) return ". All of them receive; one must send first";
  const auto members = [](const GroupControl& group) {
    return std::vector<int>(group.members(), group.members() + group.size);
  };
  for (std::size_t i = 1; i < cycle_length_; ++i) {
    const GroupControl &one = *wait_of(0).group, &other = *wait_of(i).group;
    std::vector<int> a = members(one), b = members(other);
    if (one.channel != 0 || other.channel != 0 || a == b) continue;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    if (a == b)
      return str(". Groups ", group_text(one), " and ", group_text(other),
                 " hold the same ranks in another order: every rank must name the ranks of a mesh in one order");
  }
  return "";
}

std::string WaitGraph::text() const {
  constexpr std::size_t most_named = 24;
  std::string out = deadlock_head;
  for (std::size_t i = 0; i < std::min(cycle_length_, most_named); ++i)
    out += str(i == 0 ? "" : "; ", wait_text(deadlocked_[i]));
  if (cycle_length_ > most_named) out += str("; and so on through ", cycle_length_, " ranks");
  out += hint();
  const std::size_t others = deadlocked_.size() - cycle_length_;
  if (others == 0) return out;
  out += ". Waiting for the cycle: ";
  for (std::size_t i = 0; i < std::min(others, most_named); ++i)
    out += str(i == 0 ? "" : "; ", wait_text(deadlocked_[cycle_length_ + i]));
  if (others > most_named) out += str("; and ", others - most_named, " more ranks");
  return out;
}

// One rank searches at a time, so that a deadlock gets one text.
class DeadlockSearch {
 public:
  DeadlockSearch(WorldControl& world, int rank) : world_(world) {
    std::uint32_t none = 0;
    is_mine_ = world_.deadlock_searcher.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
  }
  ~DeadlockSearch() {
    if (is_mine_) world_.deadlock_searcher.store(0);
  }
  DeadlockSearch(const DeadlockSearch&) = delete;
  DeadlockSearch& operator=(const DeadlockSearch&) = delete;
  bool is_mine() const { return is_mine_; }

 private:
  WorldControl& world_;
  bool is_mine_ = false;
};

// Publishes that this rank is blocked. False if it is not.
bool publish_blocked(RankState& rank) {
  RankControl& control = rank.control();
  const std::uint64_t changes = control.wait_changes.load();
  if (!rank.activity->none() || control.wait_changes.load() != changes) return false;
  control.blocked_at.store(changes + 1);
  return true;
}

// What this host knows of ranks elsewhere is some milliseconds old, and an arrival may be on its way. A deadlock that
// contains them counts when it has stayed the same for much longer than a message travels.
bool is_confirmed(RankState& rank, const WaitGraph& graph, std::int64_t now) {
  if (graph.is_local()) return true;
  if (const std::uint64_t signature = graph.signature(); rank.suspected_deadlock != signature) {
    rank.suspected_deadlock = signature;
    rank.suspected_since_ns = now;
  }
  return now - rank.suspected_since_ns >= between_hosts_confirmation_ns;
}

void search(RankState& rank, std::int64_t now) {
  const DeadlockSearch turn(*rank.world, rank.rank);
  if (!turn.is_mine()) return;
  WaitGraph graph(*rank.world);
  if (graph.finds(rank.rank) && is_confirmed(rank, graph, now)) graph.poison(*rank.plane, graph.text());
}

}  // namespace

LongWait::LongWait(RankState& rank) : rank_(rank) { rank_.control().waits.fetch_add(1); }

LongWait::LongWait(const IssuedCollective& issued, WaitReason reason, std::uint64_t target) : LongWait(*issued.rank) {
  if (!claim()) return;
  entry_->sequence.store(issued.sequence);
  entry_->round.store(issued.round);
  entry_->target.store(target);
  entry_->record.store(issued.record_number);
  entry_->reason.store(static_cast<std::uint32_t>(reason));
  entry_->me.store(static_cast<std::uint32_t>(issued.me));
  publish(*issued.group);
}

LongWait::LongWait(RankState& rank, const GroupControl& group, int me, int member, std::uint64_t round)
    : LongWait(rank) {
  if (!claim()) return;
  entry_->target.store(round);
  entry_->member.store(member);
  entry_->reason.store(static_cast<std::uint32_t>(WaitReason::end_of_round));
  entry_->me.store(static_cast<std::uint32_t>(me));
  publish(group);
}

bool LongWait::claim() {
  for (WaitEntry& entry : rank_.control().wait_entries) {
    std::uint64_t free = 0;
    if (!entry.group.compare_exchange_strong(free, being_written)) continue;
    entry_ = &entry;
    return true;
  }
  return false;
}

void LongWait::publish(const GroupControl& group) {
  entry_->group.store(rank_.world->offset_of(&group));
  rank_.control().wait_changes.fetch_add(1);
  rank_.activity->remove();
}

LongWait::~LongWait() {
  RankControl& control = rank_.control();
  if (entry_ != nullptr) {
    control.wait_changes.fetch_add(1);  // first, so that no search regards the rank as blocked any more
    rank_.activity->add();
    entry_->group.store(0);
  }
  control.waits.fetch_sub(1);
}

bool names_deadlock_of(const std::string& text, int rank) {
  return text.starts_with(deadlock_head) && text.find(wait_head(rank)) != std::string::npos;
}

void check_for_deadlock(RankState& rank, std::int64_t waited_ns) {
  if (!publish_blocked(rank) || waited_ns < min_wait_ns) return;
  const std::int64_t now = now_ns();
  if (now < rank.next_deadlock_check_ns.load(std::memory_order_relaxed)) return;
  rank.next_deadlock_check_ns.store(now + between_searches_ns, std::memory_order_relaxed);
  search(rank, now);
}

void search_for_deadlock(RankState& rank, int turn) {
  if (publish_blocked(rank) && turn > 1) search(rank, now_ns());
}

}  // namespace lockstep::comm
