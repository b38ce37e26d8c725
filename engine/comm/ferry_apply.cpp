// Writes the messages of other hosts into the local control area.
#include <algorithm>

#include "engine/comm/ferry_state.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/slot.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t longest_poison_delay_ns = 200'000'000;

template <class Body>
Body body_of(std::string_view& bytes, int from) {
  Body body;
  if (!take_body(bytes, body)) throw CollectiveError(str("host ", from, " sent a message that is too short"));
  return body;
}

}  // namespace

GroupControl& Ferry::State::group_of(std::uint64_t id, int from) {
  GroupControl* const group = find_group(world, id);
  if (group == nullptr) throw CollectiveError(str("host ", from, " names a process group that it has not described"));
  return *group;
}

void Ferry::State::apply(FerryPost::Received& received) {
  const int from = received.from;
  Peer& peer = peers[static_cast<std::size_t>(from)];
  peer.heard_ns = now_ns();
  std::string_view rest = received.body;
  switch (received.kind) {
    case FerryKind::group: {
      const auto body = body_of<GroupBody>(rest, from);
      std::vector<std::int32_t> members(rest.size() / sizeof(std::int32_t));
      std::memcpy(members.data(), rest.data(), bounded_product(members.size(), sizeof(std::int32_t)));
      find_or_insert_group(world, {members.begin(), members.end()}, body.channel);
      return;
    }
    case FerryKind::arrival: {
      const auto body = body_of<ArrivalBody>(rest, from);
      group_of(body.group, from);
      if (!pending_arrivals.empty() || !apply_arrival(body)) pending_arrivals.push_back(body);
      return;
    }
    case FerryKind::staged_piece: {
      const auto body = body_of<PieceBody>(rest, from);
      group_of(body.group, from);
      if (!apply_piece(body, rest)) pending_pieces.push_back({body, std::string(rest)});
      return;
    }
    case FerryKind::end_of_round: {
      const auto body = body_of<RoundBody>(rest, from);
      MemberRounds& rounds = group_of(body.group, from).rounds_of(body.member);
      rounds.issued[body.round % MemberRounds::num_kept].store(body.issued, std::memory_order_relaxed);
      rounds.ended.store(body.round, std::memory_order_release);
      return;
    }
    case FerryKind::content_text: {
      const auto body = body_of<TextBody>(rest, from);
      RankControl& rank = world.rank(body.rank);
      const std::size_t size = rest.copy(rank.content_text, sizeof rank.content_text - 1);
      rank.content_text[size] = '\0';
      rank.content_text_group = world.offset_of(&group_of(body.group, from));
      rank.content_text_of.store(body.sequence + 1, std::memory_order_release);
      return;
    }
    case FerryKind::propose: {
      const auto body = body_of<PoisonBody>(rest, from);
      group_of(body.group, from);
      if (body.more_follow == 0)
        for (PendingPoison& earlier : pending_poisons)
          if (earlier.from == from) earlier.more_follow = false;
      return pending_poisons.push_back({body, std::string(rest), true, body.more_follow != 0, from, now_ns()});
    }
    case FerryKind::poison: {
      const auto body = body_of<PoisonBody>(rest, from);
      group_of(body.group, from);
      return pending_poisons.push_back({body, std::string(rest), false, false, from, now_ns()});
    }
    case FerryKind::rank_state: {
      const auto body = body_of<RankBody>(rest, from);
      return apply_rank_state(body, rest);
    }
    case FerryKind::abort:
      told_abort = true;
      world.abort.try_set(rest);
      return notify_all(world);
    case FerryKind::data:
      return apply_data(received);
    case FerryKind::heartbeat:
      return;  // heard_ns is all it is for
    case FerryKind::end:
      peer.ended = true;
      return;
  }
}

bool Ferry::State::apply_arrival(const ArrivalBody& body) {
  GroupControl& group = *find_group(world, body.group);
  Slot& slot = group.slot(body.sequence);
  const auto generation = static_cast<std::uint32_t>(body.sequence / ring_slots);
  if (slot.generation.load(std::memory_order_acquire) != generation) return false;
  const std::uint64_t number =
      add_record(world.rank(group.members()[body.member]), body.record, group, now_ns() - body.age_ns);
  MemberEntry& entry = slot.entries()[body.member];
  entry.fingerprint = body.fingerprint;
  entry.input = nullptr;
  entry.output = nullptr;
  entry.record = static_cast<std::uint32_t>(number);
  entry.arrival.store(generation + 1, std::memory_order_release);
  count_arrival(world, group, body.sequence);
  begin_crossing(group, body.sequence);
  return true;
}

bool Ferry::State::apply_piece(const PieceBody& body, std::string_view piece) {
  GroupControl& group = *find_group(world, body.group);
  Slot& slot = group.slot(body.sequence);
  // The slot is open here when all arrivals have been applied. A piece must not be counted before the barrier of the
  // piece before it.
  const auto size = static_cast<std::uint64_t>(group.size);
  if (slot.generation.load(std::memory_order_acquire) != body.sequence / ring_slots ||
      slot.stage.load(std::memory_order_acquire) != Stage::open ||
      slot.barrier_arrivals.load(std::memory_order_acquire) < body.piece * size)
    return false;
  MemberEntry& entry = slot.entries()[body.member];
  const auto number = static_cast<std::int64_t>(body.piece);
  if (piece.size() != piece_bytes(entry, number))
    throw CollectiveError(str("a staged piece has ", piece.size(), " bytes in place of ", piece_bytes(entry, number)));
  allocate_staging(world, entry);
  std::memcpy(staged_piece(world, entry, number), piece.data(), piece.size());
  if (slot.barrier_arrivals.fetch_add(1) + 1 == (body.piece + 1) * size) notify(slot.changes);
  return true;
}

bool Ferry::State::retry_pending() {
  const auto arrived = std::erase_if(pending_arrivals, [this](const ArrivalBody& body) { return apply_arrival(body); });
  const auto pieces =
      std::erase_if(pending_pieces, [this](const PendingPiece& each) { return apply_piece(each.body, each.piece); });
  const auto poisons = std::erase_if(pending_poisons, [this](const PendingPoison& each) { return apply_poison(each); });
  const auto ends = std::erase_if(pending_ends, [this](const PendingEnd& each) {
    if (is_needed(each.rank)) return false;
    end_rank(each.rank, each.end, each.why);
    return true;
  });
  return arrived + pieces + poisons + ends > 0;
}

// A call that failed elsewhere says nothing about the calls before it: these may still finish here, as they did there.
bool Ferry::State::apply_poison(const PendingPoison& pending) {
  const PoisonBody& body = pending.body;
  const bool must_wait = pending.more_follow || is_moving(body.group);
  if (must_wait && now_ns() - pending.since_ns < longest_poison_delay_ns) return false;
  GroupControl& group = *find_group(world, body.group);
  if (pending.is_proposal)
    poison(group, pending.text, body.by_end != 0);
  else
    poison_here(world, group, pending.text, body.by_end != 0 ? Cause::peer_ended : Cause::own);
  return true;
}

bool Ferry::State::is_moving(std::uint64_t group) const {
  return std::any_of(crossings.begin(), crossings.end(), [&](const auto& each) { return each.first.first == group; }) ||
         std::any_of(pending_pieces.begin(), pending_pieces.end(),
                     [&](const PendingPiece& each) { return each.body.group == group; });
}

void Ferry::State::apply_rank_state(const RankBody& body, std::string_view rest) {
  LOCKSTEP_CHECK(body.rank >= 0 && body.rank < world.world_size && !hosts.is_local(body.rank), "the state of rank ",
                 body.rank, " from another host");
  RankControl& rank = world.rank(body.rank);
  if (body.has_begun != 0 && rank.begun_ns.load() == 0) rank.begun_ns.store(now_ns());
  std::memcpy(rank.location.step, body.step, sizeof body.step);
  std::memcpy(rank.location.file, body.file, sizeof body.file);
  rank.location.line = body.line;
  rank.location.column = body.column;
  // The number of changes first and `blocked_at` last: a search that reads meanwhile sees that the waits change.
  rank.wait_changes.store(body.wait_changes);
  rank.waits.store(body.waits);
  std::uint32_t number = 0;
  for (WaitEntry& entry : rank.wait_entries) {
    entry.group.store(0);
    WaitBody wait;
    if (number++ >= body.num_waits || !take_body(rest, wait)) continue;
    const GroupControl* const group = find_group(world, wait.group);
    if (group == nullptr) continue;
    entry.sequence.store(wait.sequence);
    entry.round.store(wait.round);
    entry.target.store(wait.target);
    entry.reason.store(wait.reason);
    entry.me.store(wait.me);
    entry.member.store(wait.member);
    const bool has_call = wait.reason != static_cast<std::uint32_t>(WaitReason::end_of_round);
    entry.record.store(has_call ? record_of(rank, *group, wait.sequence, wait.record, now_ns()) : 0);
    entry.group.store(world.offset_of(group));
  }
  rank.blocked_at.store(body.blocked_at);
  const GroupControl* const group = body.last_group == 0 ? nullptr : find_group(world, body.last_group);
  if (group != nullptr) {
    const std::uint64_t last =
        record_of(rank, *group, body.last_sequence, body.last_record, now_ns() - body.last_age_ns);
    rank.records[last % recorder_entries].state.store(body.last_state, std::memory_order_release);
  }
  if (body.end != RankEnd::none) pending_ends.push_back({body.rank, body.end, std::string(rest)});
}

// The messages of a rank before its end still count. Its peers see the end after them. In a poisoned group nobody waits
// for them, and they may never be complete: the slot that is open here may be refused elsewhere.
bool Ferry::State::is_needed(int rank) const {
  const auto has = [&](std::uint64_t id) {
    const GroupControl* const group = find_group(world, id);
    if (group->poison.is_set()) return false;
    return std::find(group->members(), group->members() + group->size, rank) != group->members() + group->size;
  };
  return std::any_of(crossings.begin(), crossings.end(), [&](const auto& each) { return has(each.first.first); }) ||
         std::any_of(pending_pieces.begin(), pending_pieces.end(),
                     [&](const PendingPiece& each) { return has(each.body.group); });
}

// The local number of the record of a call of a rank elsewhere. This host may have seen no arrival at it.
std::uint64_t Ferry::State::record_of(RankControl& rank, const GroupControl& group, std::uint64_t sequence,
                                      const RecordBytes& bytes, std::int64_t issued_ns) const {
  const std::uint64_t count = rank.num_records.load();
  for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(count, recorder_entries); ++back) {
    const Record& record = rank.records[(count - back) % recorder_entries];
    if (record.group == world.offset_of(&group) && record.sequence == sequence) return count - back;
  }
  return add_record(rank, bytes, group, issued_ns);
}

// Adds a record of a rank elsewhere to the flight recorder, and returns its local number.
std::uint64_t Ferry::State::add_record(RankControl& rank, const RecordBytes& bytes, const GroupControl& group,
                                       std::int64_t issued_ns) const {
  const std::uint64_t number = rank.num_records.load(std::memory_order_relaxed);
  Record& record = rank.records[number % recorder_entries];
  std::memcpy(static_cast<void*>(&record), bytes.data(), sizeof record);
  record.group = world.offset_of(&group);
  record.issued_ns = issued_ns;
  record.state.store(CollectiveState::waiting, std::memory_order_relaxed);
  rank.num_records.store(number + 1, std::memory_order_release);
  return number;
}

void Ferry::State::apply_data(FerryPost::Received& received) {
  std::string_view rest = received.body;
  const auto body = body_of<DataBody>(rest, received.from);
  const Key key{body.group, body.sequence};
  const auto found = crossings.find(key);
  if (found != crossings.end()) return found->second->take(received);
  if (ending) return post.drop(received.message);
  early_data[key].push_back(std::move(received));
}

}  // namespace lockstep::comm
