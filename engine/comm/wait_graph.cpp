#include "engine/comm/wait_graph.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/comm/messages.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Before that a wait is more often than not one for a rank that is about to come.
constexpr std::int64_t patience_ns = 40'000'000;
constexpr std::int64_t between_looks_ns = 20'000'000;
constexpr std::uint64_t being_written = 1;

// A wait as another rank sees it.
struct Wait {
  GroupControl* group = nullptr;
  std::uint64_t offset = 0, sequence = 0, round = 0, target = 0, record = 0;
  Waiting what = Waiting::arrivals;
  int me = 0, member = 0;

  // Arrivals: every one of these must come. Else any one of them may end it. Ranks of the world.
  std::vector<int> awaited;
  bool needs_all() const { return what == Waiting::arrivals || what == Waiting::end_of_round; }
};

struct Node {
  std::uint64_t changes = 0;
  bool may_go_on = true;
  std::vector<Wait> waits;
};

bool has_arrived(Wait& wait, int member) {
  const std::uint32_t generation = static_cast<std::uint32_t>(wait.sequence / ring_slots);
  const Line& line = wait.group->slot(wait.sequence).lines()[member];
  return (line.arrival.load(std::memory_order_acquire) >> 1) == generation + 1;
}

// The event has come, or an error is about to be reported: the wait ends by itself.
bool ends_by_itself(Wait& wait) {
  GroupControl& group = *wait.group;
  if (group.poison.any()) return true;
  Slot& slot = group.slot(wait.sequence);
  const std::uint32_t generation = static_cast<std::uint32_t>(wait.sequence / ring_slots);
  switch (wait.what) {
    case Waiting::slot:
      return slot.generation.load(std::memory_order_acquire) == generation;
    case Waiting::arrivals:
      if (slot.generation.load(std::memory_order_acquire) != generation) return true;
      if (slot.stage.load(std::memory_order_acquire) != Stage::filling) return true;
      for (int member = 0; member < group.size; ++member)
        if (!has_arrived(wait, member) && group.rounds_of(member).left_out(wait.round, wait.sequence)) return true;
      return false;
    case Waiting::data:
      return true;  // somebody computes
    case Waiting::round:
      return slot.rounds.load(std::memory_order_acquire) >= wait.target;
    case Waiting::end_of_round:
      return group.rounds_of(wait.member).ended.load(std::memory_order_acquire) >= wait.target;
  }
  return true;
}

void find_awaited(Wait& wait) {
  for (int member = 0; member < wait.group->size; ++member) {
    if (member == wait.me || (wait.what == Waiting::arrivals && has_arrived(wait, member)) ||
        (wait.what == Waiting::end_of_round && member != wait.member))
      continue;
    wait.awaited.push_back(wait.group->members()[member]);
  }
}

class Graph {
 public:
  explicit Graph(WorldControl& world) : world_(world), nodes_(static_cast<std::size_t>(world.world_size)) {}

  // False when this rank, or nobody, is in a deadlock.
  bool finds(int rank) {
    for (int r = 0; r < world_.world_size; ++r) read_state(r);
    for (int r = 0; r < world_.world_size; ++r) read_waits(r);
    spread();
    if (node(rank).may_go_on) return false;
    collect(rank);
    if (stuck_.empty()) return false;
    for (int r = 0; r < world_.world_size; ++r)
      if (!node(r).may_go_on && !is_still_stuck(r)) return false;
    return true;
  }

  // The waits of the cycle. A rank that waits for these goes on when they do, or learns that they failed.
  void poison(const std::string& text) {
    for (std::size_t i = 0; i < cycle_length_; ++i) next(stuck_[i]).second->group->poison.claim_and_fill(text);
    ring_all(world_);
  }

  std::string text() const;

 private:
  Node& node(int rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  const Node& node(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }

  bool is_still_stuck(int r) const {
    const RankControl& rank = world_.rank(r);
    return rank.wait_changes.load() == node(r).changes && rank.end.load() == RankEnd::none;
  }

  void read_state(int r) {
    const RankControl& rank = world_.rank(r);
    node(r).changes = rank.wait_changes.load();
    node(r).may_go_on = rank.end.load() != RankEnd::none || rank.stuck_at.load() != node(r).changes + 1;
  }

  // The waits of a stuck rank. A torn read shows in `wait_changes`.
  void read_waits(int r) {
    if (node(r).may_go_on) return;
    for (const WaitEntry& entry : world_.rank(r).waits_in) {
      Wait wait;
      wait.offset = entry.group.load();
      if (wait.offset == 0 || wait.offset == being_written) continue;
      wait.sequence = entry.sequence.load();
      wait.round = entry.round.load();
      wait.target = entry.target.load();
      wait.record = entry.record.load();
      wait.what = static_cast<Waiting>(entry.what.load());
      wait.me = static_cast<int>(entry.me.load());
      wait.member = entry.member.load();
      node(r).waits.push_back(std::move(wait));
    }
    if (!is_still_stuck(r)) {
      node(r).may_go_on = true;
      return;
    }
    for (Wait& wait : node(r).waits) {
      wait.group = &world_.group(wait.offset);
      if (ends_by_itself(wait)) node(r).may_go_on = true;
      find_awaited(wait);
    }
  }

  bool can_end(const Wait& wait) const {
    const auto free = [this](int r) { return node(r).may_go_on; };
    return wait.needs_all() ? std::all_of(wait.awaited.begin(), wait.awaited.end(), free)
                            : std::any_of(wait.awaited.begin(), wait.awaited.end(), free);
  }

  // Whoever can go on may end the waits of others.
  void spread() {
    for (bool changed = true; changed;) {
      changed = false;
      for (Node& each : nodes_) {
        if (each.may_go_on) continue;
        const auto ends = [this](const Wait& wait) { return can_end(wait); };
        if (!std::any_of(each.waits.begin(), each.waits.end(), ends)) continue;
        each.may_go_on = changed = true;
      }
    }
  }

  // The first rank that this one waits for and that cannot go on.
  std::pair<int, const Wait*> next(int r) const {
    for (const Wait& wait : node(r).waits)
      for (const int awaited : wait.awaited)
        if (!node(awaited).may_go_on) return {awaited, &wait};
    return {-1, nullptr};
  }

  // The ranks of a cycle that one comes to from this rank, then all that wait for them, directly or not.
  void collect(int rank) {
    std::vector<bool> met(nodes_.size(), false);
    int at = rank;
    for (; at >= 0 && !met[static_cast<std::size_t>(at)]; at = next(at).first) met[static_cast<std::size_t>(at)] = true;
    if (at < 0) return;
    std::fill(met.begin(), met.end(), false);
    for (; !met[static_cast<std::size_t>(at)]; at = next(at).first) {
      met[static_cast<std::size_t>(at)] = true;
      stuck_.push_back(at);
    }
    // It is named from its lowest rank on.
    std::rotate(stuck_.begin(), std::min_element(stuck_.begin(), stuck_.end()), stuck_.end());
    cycle_length_ = stuck_.size();
    for (bool changed = true; changed;) {
      changed = false;
      for (int r = 0; r < world_.world_size; ++r) {
        if (node(r).may_go_on || met[static_cast<std::size_t>(r)]) continue;
        const int awaited = next(r).first;
        if (awaited < 0 || !met[static_cast<std::size_t>(awaited)]) continue;
        met[static_cast<std::size_t>(r)] = changed = true;
        stuck_.push_back(r);
      }
    }
  }

  std::string wait_text(int r) const;
  std::string hint() const;

  WorldControl& world_;
  std::vector<Node> nodes_;
  std::vector<int> stuck_;  // the cycle, in order; then the ranks that wait for it
  std::size_t cycle_length_ = 0;
};

// "rank 0 waits for rank 1 in all_reduce(sum) of 4 float32 at line 3 (#0 of group [0, 1], axis a)".
std::string Graph::wait_text(int r) const {
  const auto [awaited, wait] = next(r);
  std::string out = str("rank ", r, " waits for rank ", awaited);
  const std::string group = group_text(*wait->group);
  if (wait->what == Waiting::end_of_round) return out + str(" at the end of a backward (group ", group, ")");
  const Record& record = world_.rank(r).records[wait->record % recorder_entries];
  return out + str(" in ", call_text(world_, record), " (#", wait->sequence, " of group ", group,
                   record.axis[0] == '\0' ? "" : str(", axis ", static_cast<const char*>(record.axis)), ")");
}

std::string Graph::hint() const {
  const auto wait_of = [this](std::size_t i) -> const Wait& { return *next(stuck_[i]).second; };
  const auto all_are = [&](Operation operation) {
    for (std::size_t i = 0; i < cycle_length_; ++i) {
      const Record& record = world_.rank(stuck_[i]).records[wait_of(i).record % recorder_entries];
      if (wait_of(i).what == Waiting::end_of_round || record.kind != static_cast<std::uint8_t>(operation)) return false;
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

std::string Graph::text() const {
  constexpr std::size_t most_named = 24;
  std::string out = "deadlock: ";
  for (std::size_t i = 0; i < std::min(cycle_length_, most_named); ++i)
    out += str(i == 0 ? "" : "; ", wait_text(stuck_[i]));
  if (cycle_length_ > most_named) out += str("; and so on through ", cycle_length_, " ranks");
  out += hint();
  const std::size_t others = stuck_.size() - cycle_length_;
  if (others == 0) return out;
  out += ". For them wait: ";
  for (std::size_t i = 0; i < std::min(others, most_named); ++i)
    out += str(i == 0 ? "" : "; ", wait_text(stuck_[cycle_length_ + i]));
  if (others > most_named) out += str("; and ", others - most_named, " more ranks");
  return out;
}

// One rank looks at a time, so that one deadlock gets one text.
class Looking {
 public:
  Looking(WorldControl& world, int rank) : world_(world) {
    std::uint32_t nobody = 0;
    holds_ = world_.looker.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank) + 1);
  }
  ~Looking() {
    if (holds_) world_.looker.store(0);
  }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;
  bool holds() const { return holds_; }

 private:
  WorldControl& world_;
  bool holds_ = false;
};

// This rank is stuck, and its peers may know.
bool note_stuck(RankState& rank) {
  RankControl& control = rank.control();
  const std::uint64_t changes = control.wait_changes.load();
  if (!rank.activity->none() || control.wait_changes.load() != changes) return false;
  control.stuck_at.store(changes + 1);
  return true;
}

}  // namespace

LongWait::LongWait(RankState& rank) : rank_(rank) { rank_.control().waits.fetch_add(1); }

LongWait::LongWait(const Issued& issued, Waiting for_what, std::uint64_t target) : LongWait(*issued.rank) {
  if (!claim()) return;
  entry_->sequence.store(issued.sequence);
  entry_->round.store(issued.round);
  entry_->target.store(target);
  entry_->record.store(issued.record_number);
  entry_->what.store(static_cast<std::uint32_t>(for_what));
  entry_->me.store(static_cast<std::uint32_t>(issued.me));
  show(*issued.group);
}

LongWait::LongWait(RankState& rank, const GroupControl& group, int me, int member, std::uint64_t round)
    : LongWait(rank) {
  if (!claim()) return;
  entry_->target.store(round);
  entry_->member.store(member);
  entry_->what.store(static_cast<std::uint32_t>(Waiting::end_of_round));
  entry_->me.store(static_cast<std::uint32_t>(me));
  show(group);
}

bool LongWait::claim() {
  for (WaitEntry& entry : rank_.control().waits_in) {
    std::uint64_t free = 0;
    if (!entry.group.compare_exchange_strong(free, being_written)) continue;
    entry_ = &entry;
    return true;
  }
  return false;
}

void LongWait::show(const GroupControl& group) {
  entry_->group.store(rank_.world->offset_of(&group));
  rank_.control().wait_changes.fetch_add(1);
  rank_.activity->remove();
}

LongWait::~LongWait() {
  RankControl& control = rank_.control();
  if (entry_ != nullptr) {
    control.wait_changes.fetch_add(1);  // before this thread counts: nobody must take the rank for stuck any more
    rank_.activity->add();
    entry_->group.store(0);
  }
  control.waits.fetch_sub(1);
}

void look_for_deadlock(RankState& rank, std::int64_t waited_ns) {
  if (!note_stuck(rank) || waited_ns < patience_ns) return;
  const std::int64_t now = now_ns();
  if (now < rank.next_look_ns.load(std::memory_order_relaxed)) return;
  rank.next_look_ns.store(now + between_looks_ns, std::memory_order_relaxed);
  const Looking looking(*rank.world, rank.rank);
  if (!looking.holds()) return;
  Graph graph(*rank.world);
  if (graph.finds(rank.rank)) graph.poison(graph.text());
}

}  // namespace lockstep::comm
